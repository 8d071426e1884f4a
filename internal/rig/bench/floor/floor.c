// floor carries out a list of system calls in a network namespace and does nothing else. Its time is the least that Setup
// or Teardown can take.
//
// For each line on standard input, "LIST NETNS STATE", it prints the nanoseconds from opening the namespace until
// everything is closed again, and how many of them the program had a CPU. LIST is a file with a step per line; the caller chooses the numbers and messages. floor
// reads the file before the time starts.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fib_rules.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/neighbour.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <linux/nsfs.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

enum { MAX_STEPS = 128, MAX_WORDS = 6, BUFFER = 1 << 18 };

struct step {
	char words[MAX_WORDS][128];
	char *data; // content of the step's file
	size_t size;
};

static char buffer[BUFFER];
static struct step *step; // the current step, for error messages
static int route, filter, state;
static uint32_t seq;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	int error = errno;
	va_list args;
	va_start(args, format);
	fprintf(stderr, "floor: ");
	if (step)
		fprintf(stderr, "%s %s: ", step->words[0], step->words[1]);
	vfprintf(stderr, format, args);
	fprintf(stderr, ": %s\n", strerror(error));
	exit(1);
}

static int must(int result, const char *what)
{
	if (result < 0)
		die("%s", what);
	return result;
}

static void load(struct step *s, const char *path)
{
	FILE *f = fopen(path, "r");
	if (!f)
		die("%s", path);
	s->data = malloc(BUFFER);
	if (!s->data)
		die("memory");
	s->size = fread(s->data, 1, BUFFER, f);
	if (s->size == BUFFER)
		die("%s is too long", path);
	fclose(f);
}

static int load_list(struct step *steps, const char *path)
{
	char line[512];
	int n = 0;
	FILE *f = fopen(path, "r");
	if (!f)
		die("%s", path);
	while (fgets(line, sizeof line, f)) {
		if (n == MAX_STEPS)
			die("%s is too long", path);
		struct step *s = &steps[n++];
		memset(s, 0, sizeof *s);
		int i = 0;
		for (char *w = strtok(line, " \n"); w && i < MAX_WORDS; w = strtok(NULL, " \n"))
			snprintf(s->words[i++], sizeof s->words[0], "%s", w);
		if (!strcmp(s->words[0], "route") || !strcmp(s->words[0], "nftables"))
			load(s, s->words[1]);
		else if (!strcmp(s->words[0], "write"))
			load(s, s->words[3]);
	}
	fclose(f);
	return n;
}

static int open_socket(int protocol)
{
	int one = 1;
	struct sockaddr_nl address = {.nl_family = AF_NETLINK};
	int s = must(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol), "socket");
	must(setsockopt(s, SOL_NETLINK, NETLINK_EXT_ACK, &one, sizeof one), "setsockopt");
	must(setsockopt(s, SOL_NETLINK, NETLINK_CAP_ACK, &one, sizeof one), "setsockopt");
	must(bind(s, (struct sockaddr *)&address, sizeof address), "bind");
	return s;
}

static void send_all(int socket, const void *data, size_t size)
{
	struct sockaddr_nl address = {.nl_family = AF_NETLINK};
	must(sendto(socket, data, size, 0, (struct sockaddr *)&address, sizeof address), "sendto");
}

// batch sends messages and receives the answers; expected is the errno of each answer.
static void batch(int socket, const void *data, size_t size, int expected)
{
	send_all(socket, data, size);
	int n, answers = 0;
	while ((n = recv(socket, buffer, sizeof buffer, MSG_DONTWAIT)) >= 0) {
		for (struct nlmsghdr *h = (void *)buffer; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
			struct nlmsgerr *e = NLMSG_DATA(h);
			answers++;
			if (h->nlmsg_type == NLMSG_ERROR && e->error != -expected) {
				errno = -e->error;
				die("message %u", h->nlmsg_seq);
			}
		}
	}
	if (errno != EAGAIN || answers == 0)
		die("answer");
}

// dump requests all objects of a kind. The request has a header of the given size behind struct nlmsghdr, and one attribute.
static void dump(int socket, int type, const void *header, int size, int attribute, const void *value, int length)
{
	struct {
		struct nlmsghdr h;
		char data[128];
	} m = {.h = {.nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP, .nlmsg_seq = ++seq}};
	memcpy(m.data, header, size);
	m.h.nlmsg_len = NLMSG_LENGTH(size);
	if (length) {
		struct rtattr *a = (void *)(m.data + NLMSG_ALIGN(size));
		a->rta_type = attribute;
		a->rta_len = RTA_LENGTH(length);
		memcpy(RTA_DATA(a), value, length);
		m.h.nlmsg_len = NLMSG_LENGTH(NLMSG_ALIGN(size)) + RTA_SPACE(length);
	}
	send_all(socket, &m, m.h.nlmsg_len);
	for (;;) {
		int n = must(recv(socket, buffer, sizeof buffer, 0), "recv");
		for (struct nlmsghdr *h = (void *)buffer; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
			if (h->nlmsg_type == NLMSG_DONE)
				return;
			if (h->nlmsg_type == NLMSG_ERROR) {
				errno = -((struct nlmsgerr *)NLMSG_DATA(h))->error;
				die("dump of type %d", type);
			}
		}
	}
}

static void look(void)
{
	struct ifinfomsg link = {0};
	struct ifaddrmsg address = {0};
	struct rtmsg r = {0};
	struct ndmsg neighbour = {0};
	uint32_t mask = RTEXT_FILTER_SKIP_STATS;
	dump(route, RTM_GETLINK, &link, sizeof link, IFLA_EXT_MASK, &mask, sizeof mask);
	dump(route, RTM_GETADDR, &address, sizeof address, 0, NULL, 0);
	dump(route, RTM_GETROUTE, &r, sizeof r, 0, NULL, 0);
	dump(route, RTM_GETRULE, &r, sizeof r, 0, NULL, 0);
	dump(route, RTM_GETNEIGH, &neighbour, sizeof neighbour, 0, NULL, 0);
	neighbour.ndm_family = AF_BRIDGE;
	dump(route, RTM_GETNEIGH, &neighbour, sizeof neighbour, 0, NULL, 0);
}

static void filters(int index)
{
	struct tcmsg link = {.tcm_ifindex = index};
	dump(route, RTM_GETQDISC, &link, sizeof link, 0, NULL, 0);
	link.tcm_parent = TC_H_MAKE(TC_H_CLSACT, 0);
	dump(route, RTM_GETTFILTER, &link, sizeof link, 0, NULL, 0);
}

static void tables(void)
{
	struct nfgenmsg all = {0};
	dump(filter, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETTABLE, &all, sizeof all, 0, NULL, 0);
}

static void rules(int family, const char *table)
{
	struct nfgenmsg of = {.nfgen_family = family};
	dump(filter, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN, &of, sizeof of, 0, NULL, 0);
	dump(filter, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETRULE, &of, sizeof of, NFTA_RULE_TABLE, table, strlen(table) + 1);
}

static void read_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return; /* the link does not exist yet */
	must(fd, path);
	must(read(fd, buffer, sizeof buffer), path);
	close(fd);
}

static void write_sysctl(const char *path, const char *value)
{
	int fd = must(open(path, O_WRONLY | O_CLOEXEC), path);
	must(write(fd, value, strlen(value)), path);
	close(fd);
}

static void write_file(const char *name, int mode, const char *data, size_t size)
{
	char temporary[160];
	snprintf(temporary, sizeof temporary, ".%s.new", name);
	int fd = must(openat(state, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode), temporary);
	must(write(fd, data, size), temporary);
	must(fchmod(fd, mode), temporary);
	must(fsync(fd), temporary);
	close(fd);
	must(renameat(state, temporary, state, name), name);
}

static void read_back(const char *name)
{
	struct stat s;
	must(fstatat(state, name, &s, AT_SYMLINK_NOFOLLOW), name);
	int fd = must(openat(state, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC), name);
	must(read(fd, buffer, sizeof buffer), name);
	close(fd);
}

static void make_tap(int index, const char *name, int flags, int owner)
{
	struct ifreq r = {.ifr_flags = flags};
	snprintf(r.ifr_name, sizeof r.ifr_name, "%s", name);
	int fd = must(open("/dev/net/tun", O_RDWR | O_CLOEXEC), "/dev/net/tun");
	must(ioctl(fd, TUNSETIFINDEX, &index), "TUNSETIFINDEX");
	must(ioctl(fd, TUNSETIFF, &r), "TUNSETIFF");
	must(ioctl(fd, TUNSETOWNER, owner), "TUNSETOWNER");
	must(ioctl(fd, TUNSETPERSIST, 1), "TUNSETPERSIST");
	close(fd);
}

static void run(struct step *s)
{
	const char *op = s->words[0], *a = s->words[1], *b = s->words[2], *c = s->words[3], *d = s->words[4];
	step = s;
	if (!strcmp(op, "look"))
		look();
	else if (!strcmp(op, "filters"))
		filters(atoi(a));
	else if (!strcmp(op, "tables"))
		tables();
	else if (!strcmp(op, "rules"))
		rules(atoi(a), b);
	else if (!strcmp(op, "route"))
		batch(route, s->data, s->size, atoi(b));
	else if (!strcmp(op, "nftables"))
		batch(filter, s->data, s->size, atoi(b));
	else if (!strcmp(op, "tap"))
		make_tap(atoi(a), b, strtol(c, NULL, 0), atoi(d));
	else if (!strcmp(op, "sysctl"))
		write_sysctl(a, b);
	else if (!strcmp(op, "read"))
		read_file(a);
	else if (!strcmp(op, "write"))
		write_file(a, strtol(b, NULL, 8), s->data, s->size);
	else if (!strcmp(op, "readback"))
		read_back(a);
	else if (!strcmp(op, "absent"))
		fstatat(state, a, &(struct stat){0}, AT_SYMLINK_NOFOLLOW);
	else if (!strcmp(op, "remove"))
		must(unlinkat(state, a, 0), a);
	else
		die("unknown step");
	step = NULL;
}

static void identify(int ns)
{
	struct statfs fs;
	struct stat s;
	must(fstatfs(ns, &fs), "fstatfs");
	must(ioctl(ns, NS_GET_NSTYPE), "NS_GET_NSTYPE");
	must(fstat(ns, &s), "fstat");
}

static void identify_path(const char *path)
{
	int ns = open(path, O_RDONLY | O_CLOEXEC);
	if (ns < 0)
		return; // /proc/1 may belong to another container
	identify(ns);
	close(ns);
}

// carry_out does the whole work: the namespace's identity, the lock, the state directory, and the steps in the namespace.
static void carry_out(struct step *steps, int n, int ns, const char *dir)
{
	char path[64];
	struct stat s;
	must(stat("/dev/net/tun", &s), "/dev/net/tun");
	identify(ns);
	read_file("/proc/sys/kernel/random/boot_id");
	identify_path("/proc/self/ns/net");
	identify_path("/proc/1/ns/net");
	snprintf(path, sizeof path, "/proc/self/fd/%d", ns);
	int lock = must(open(path, O_RDONLY | O_CLOEXEC), path);
	must(flock(lock, LOCK_EX | LOCK_NB), "flock");
	if (mkdir(dir, 0755) < 0 && errno != EEXIST)
		die("%s", dir);
	state = must(open(dir, O_RDONLY | O_CLOEXEC), dir);
	must(fstat(state, &s), dir);

	must(setns(ns, CLONE_NEWNET), "setns");
	route = open_socket(NETLINK_ROUTE);
	filter = open_socket(NETLINK_NETFILTER);
	for (int i = 0; i < n; i++)
		run(&steps[i]);
	close(route);
	close(filter);
	close(state);
	close(lock);
}

static long long now(clockid_t clock)
{
	struct timespec t;
	must(clock_gettime(clock, &t), "clock_gettime");
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(void)
{
	static struct step steps[MAX_STEPS];
	char list[128], netns[128], dir[128], line[512];
	int home = must(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), "/proc/self/ns/net");
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "%127s %127s %127s", list, netns, dir) != 3)
			die("%s", line);
		int n = load_list(steps, list);
		int ns = must(open(netns, O_RDONLY | O_CLOEXEC), netns);
		long long began = now(CLOCK_MONOTONIC), used = now(CLOCK_PROCESS_CPUTIME_ID);
		carry_out(steps, n, ns, dir);
		used = now(CLOCK_PROCESS_CPUTIME_ID) - used;
		long long took = now(CLOCK_MONOTONIC) - began;
		must(setns(home, CLONE_NEWNET), "setns");
		close(ns);
		for (int i = 0; i < n; i++)
			free(steps[i].data);
		printf("%lld %lld\n", took, used);
		fflush(stdout);
	}
	return 0;
}
