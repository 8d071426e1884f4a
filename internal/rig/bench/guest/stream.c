// stream ADDRESS PORT UNIT is the guest's end of a TCP connection. If UNIT is 0, it sends without end. Else it answers
// every UNIT octets that it receives with one octet.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static char data[1 << 18];

int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	int on = 1, s = socket(AF_INET, SOCK_STREAM, 0);

	if (argc != 4 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1)
		return 2;
	to.sin_port = htons(atoi(argv[2]));
	long unit = atol(argv[3]), had = 0;
	if (s < 0 || setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) || connect(s, (void *)&to, sizeof(to))) {
		perror("stream");
		return 1;
	}
	for (;;) {
		ssize_t size = unit ? read(s, data, sizeof(data)) : write(s, data, sizeof(data));
		if (size <= 0)
			return 0;
		if (unit)
			for (had += size; had >= unit; had -= unit)
				if (write(s, data, 1) != 1)
					return 0;
	}
}
