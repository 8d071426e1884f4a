package tap

// Sleep is what waits between two attempts to open a tap.
var Sleep = &sleep
