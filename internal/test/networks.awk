# Joins the rows of networks that differ in their first cell alone, in the place of the first one.
{
	end = index(substr($0, 3), " | ") + 2
	rest = substr($0, end)
	if (rest in names)
		names[rest] = names[rest] "; " substr($0, 3, end - 3)
	else {
		order[++rows] = rest
		names[rest] = substr($0, 3, end - 3)
	}
}
END {
	for (i = 1; i <= rows; i++)
		print "| " names[order[i]] order[i]
}
