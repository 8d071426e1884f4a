package container

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/guestwire/guestwire/internal/netns"
	"github.com/guestwire/guestwire/internal/test/leak"
	"github.com/guestwire/guestwire/internal/test/nstest"
)

func TestMain(m *testing.M) {
	leak.Allow(15 * time.Minute) // a command works on the image, which podman builds
	nstest.Main(m)
}

// wired is what a container has beside the engine's defaults.
const wired = " --device /dev/net/tun --cap-add NET_ADMIN "

// answer asks until the guest answers at an address as seen from the namespace.
func answer(t *testing.T, from *nstest.Namespace, address string) {
	t.Helper()
	nstest.Eventually(t, func() error {
		said, err := from.Ask(address)
		if err == nil && !strings.HasPrefix(said, "guest box peer ") {
			err = fmt.Errorf("%s is answered by %q", address, said)
		}
		return err
	})
}

// run starts a VM and returns its container's address. What the container has printed is reported if the test fails.
func (e *Engine) run(t *testing.T, name, flags string) string {
	t.Helper()
	e.MustPodman(t, "run --detach --volume /vm:/vm:ro --name "+name+wired+flags+" "+Image+" "+e.guest)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(e.Podman("logs " + name))
		}
	})
	return e.MustPodman(t, "inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "+name)
}

// stop stops a VM by SIGTERM, within podman's own ten seconds.
func (e *Engine) stop(t *testing.T, name string) {
	t.Helper()
	begin := time.Now()
	e.MustPodman(t, "stop "+name)
	if took := time.Since(begin); took > 9*time.Second {
		t.Errorf("stop of %s: %v, so podman has killed it", name, took)
	}
	if code := e.MustPodman(t, "inspect --format '{{.State.ExitCode}}' "+name); code != "0" {
		t.Errorf("%s ended with %s, want 0", name, code)
	}
}

// refusal runs a container in the foreground and returns the one line that it prints.
func (e *Engine) refusal(t *testing.T, flags string) string {
	t.Helper()
	out, err := e.Podman("run --rm " + flags + " " + Image)
	if err == nil {
		t.Fatalf("%s: no error, %q", flags, out)
	}
	if strings.Count(out, "\n") > 0 || !strings.HasPrefix(out, "guestwire-agent: ") {
		t.Errorf("%s\n%q\nwant one line of the agent", flags, out)
	}
	return out
}

// inGuest runs a line of shell in the guest and returns what it prints.
func inGuest(t *testing.T, inside *nstest.Namespace, line string) string {
	t.Helper()
	said, err := tryInGuest(inside, line)
	if err != nil {
		t.Fatalf("console: %v, %q", err, said)
	}
	return said
}

// tryInGuest is inGuest for a guest that may not have booted.
func tryInGuest(inside *nstest.Namespace, line string) (said string, err error) {
	var console net.Conn
	err = netns.Do(inside.File, func() (err error) {
		console, err = net.Dial("tcp", "127.0.0.1:4444")
		return err
	})
	if err != nil {
		return "", err
	}
	defer console.Close()
	if err := console.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return "", err
	}
	fmt.Fprintln(console, line)
	var text []byte
	for end := regexp.MustCompile(`\nguestwire: exit \d+`); !end.Match(text); {
		more := make([]byte, 4096)
		n, err := console.Read(more)
		if err != nil {
			return string(text), err
		}
		text = append(text, bytes.ReplaceAll(more[:n], []byte("\r"), nil)...)
	}
	return string(text), nil
}

// reach checks what the container's own processes reach: for each address the start of the answer, or of the error.
func reach(t *testing.T, inside *nstest.Namespace, want map[string]string) {
	t.Helper()
	for address, want := range want {
		said, err := inside.Ask(address)
		if err != nil {
			said = err.Error()
		}
		if !strings.Contains(said, want) {
			t.Errorf("the container asks %s: %q, want %q", address, said, want)
		}
	}
}

const (
	closed = "connection refused"
	lost   = "i/o timeout"
)

// TestRootful: a VM in a container of rootful podman with /dev/net/tun and CAP_NET_ADMIN alone.
func TestRootful(t *testing.T) {
	e := New(t, false)
	e.Build(t)
	e.guest = e.Guest(t, "box")
	e.Host.Listen("host", "[::]:9000")
	// Each VM has a network of its own: the MAC of a bridge changes with its ports, and others would wait for their
	// neighbour entries to expire.
	for i, name := range []string{"lan-redirect", "lan-masquerade", "lan-bridge", "lan-same", "lan-readonly", "lan-hook", "lan-routed", "lan-names"} {
		e.MustPodman(t, fmt.Sprintf("network create --disable-dns --ipv6 --subnet 10.89.%d.0/24 --subnet fd00:89:%[1]d::/64 %s", i+1, name))
	}

	t.Run("redirect", func(t *testing.T) {
		t.Parallel()
		own := e.run(t, "redirect", "--publish 8080:8000 --network lan-redirect --ip6 fd00:89:1::8")
		for _, address := range []string{"127.0.0.1:8080", "10.89.1.1:8080", own + ":8000", "[fd00:89:1::1]:8080", "[fd00:89:1::8]:8000"} {
			answer(t, e.Host, address)
		}
		if logs := e.MustPodman(t, "logs redirect"); !strings.Contains(logs, "guestwire-agent: binding: redirect\n") {
			t.Errorf("%s\nwant redirect, as /proc/sys is read-only", logs)
		}
		inside := e.Namespace(t, "redirect")
		if said, want := inGuest(t, inside, "nc 10.89.1.1 9000 </dev/null"), "host sees "+own; !strings.Contains(said, want) {
			t.Errorf("the guest asks the host: %q, want %q", said, want)
		}
		reach(t, inside, map[string]string{"10.89.1.1:9000": lost, own + ":8000": closed, "127.0.0.1:8000": closed})
		e.stop(t, "redirect")
	})

	t.Run("masquerade", func(t *testing.T) {
		t.Parallel()
		const flags = "--env BINDING=masquerade --network lan-masquerade --ip6 fd00:89:2::9 "
		said := e.refusal(t, wired+flags)
		sysctls := strings.Join(sysctlFlag.FindAllString(said, -1), " ")
		if sysctls == "" {
			t.Fatalf("%s\nwant flags for the engine", said)
		}
		own := e.run(t, "masquerade", flags+"--publish 8081:8000 "+sysctls)
		for _, address := range []string{"127.0.0.1:8081", "10.89.2.1:8081", own + ":8000", "[fd00:89:2::1]:8081", "[fd00:89:2::9]:8000"} {
			answer(t, e.Host, address)
		}
		reach(t, e.Namespace(t, "masquerade"), map[string]string{"10.89.2.1:9000": "host sees " + own, own + ":8000": "guest box", "127.0.0.1:8000": closed})
		e.stop(t, "masquerade")
	})

	t.Run("bridge", func(t *testing.T) {
		t.Parallel()
		const flags = "--env BINDING=bridge --network lan-bridge "
		said := e.refusal(t, wired+flags)
		e.run(t, "bridge", flags+"--publish 8083:8000 "+strings.Join(sysctlFlag.FindAllString(said, -1), " "))
		answer(t, e.Host, "127.0.0.1:8083")
		reach(t, e.Namespace(t, "bridge"), map[string]string{"10.89.3.1:9000": "network is unreachable"})
		e.stop(t, "bridge")
	})

	t.Run("routed", func(t *testing.T) {
		t.Parallel()
		const flags = "--env BINDING=routed --network lan-routed --ip6 fd00:89:7::9 "
		said := e.refusal(t, wired+flags)
		own := e.run(t, "routed", flags+"--publish 8086:8000 "+strings.Join(sysctlFlag.FindAllString(said, -1), " "))
		for _, address := range []string{"127.0.0.1:8086", "10.89.7.1:8086", own + ":8000", "[fd00:89:7::1]:8086", "[fd00:89:7::9]:8000"} {
			answer(t, e.Host, address)
		}
		reach(t, e.Namespace(t, "routed"), map[string]string{"10.89.7.1:9000": "host sees " + own, own + ":8000": "guest box", "127.0.0.1:8000": closed})
		e.stop(t, "routed")
	})

	// A resolver like Docker's, with its rules: the guest asks its gateway, and gets the names of the network.
	t.Run("names", func(t *testing.T) {
		t.Parallel()
		const flags = "--env BINDING=masquerade --network "
		sysctls := strings.Join(sysctlFlag.FindAllString(e.refusal(t, wired+flags+"lan-names"), -1), " ")
		e.MustPodman(t, "run --detach --name names --network lan-names --dns 127.0.0.11 "+sysctls+" --entrypoint sleep "+Image+" inf")
		inside := e.Namespace(t, "names")
		inside.Settle("eth0")
		inside.Start(65534, "dnsmasq", "--conf-file=/dev/null", "--keep-in-foreground", "--pid-file=", "--no-resolv", "--no-hosts",
			"--listen-address=127.0.0.11", "--bind-interfaces", "--port=41327", "--address=/db.lan/10.89.8.77")
		for _, rule := range []string{"-N DOCKER_OUTPUT", "-A OUTPUT -d 127.0.0.11 -j DOCKER_OUTPUT",
			"-A DOCKER_OUTPUT -d 127.0.0.11 -p udp --dport 53 -j DNAT --to-destination 127.0.0.11:41327",
			"-A DOCKER_OUTPUT -d 127.0.0.11 -p tcp --dport 53 -j DNAT --to-destination 127.0.0.11:41327"} {
			inside.Exec(append([]string{"iptables", "-w", "-t", "nat"}, strings.Fields(rule)...)...)
		}
		e.run(t, "vm-names", flags+"container:names")
		said := ""
		nstest.Eventually(t, func() error { // the guest boots
			var err error
			if said, err = tryInGuest(inside, "nslookup db.lan; cat /etc/resolv.conf"); err == nil && !strings.Contains(said, "10.89.8.77") {
				err = fmt.Errorf("the guest asks for db.lan: %s", said)
			}
			return err
		})
		if !strings.Contains(said, "nameserver 10.0.2.1\n") {
			t.Errorf("the guest has %s, want its gateway as the resolver", said)
		}
		e.stop(t, "vm-names")
	})

	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct{ flags, want string }{
			{"--cap-add NET_ADMIN", "--device /dev/net/tun"},
			{"--device /dev/net/tun", "--cap-add NET_ADMIN"},
			{wired + "--network none", "setup eth0: no such link"},
		} {
			if said := e.refusal(t, c.flags); !strings.Contains(said, c.want) {
				t.Errorf("%s\n%s\nwant %q in it", c.flags, said, c.want)
			}
		}
	})

	// A container in the network of another one, as in a pod: the network stays when the container ends.
	t.Run("same network again", func(t *testing.T) {
		t.Parallel()
		e.MustPodman(t, "run --detach --name net --network lan-same --publish 8082:8000 --entrypoint sleep "+Image+" inf")
		inside := e.Namespace(t, "net")
		inside.Settle("eth0")
		before := nstest.Stable(inside.Settled())
		restored := func(after string) {
			t.Helper()
			if err := nstest.Difference(before, nstest.Stable(inside.Settled())); err != nil {
				t.Errorf("after %s: %v", after, err)
			}
		}
		serves := func() {
			t.Helper()
			answer(t, e.Host, "127.0.0.1:8082")
		}
		started := func() (pid string) {
			t.Helper()
			nstest.Eventually(t, func() (err error) {
				pid, err = e.process("vm", "qemu-system")
				return err
			})
			return pid
		}
		e.run(t, "vm", "--network container:net")
		serves()
		e.stop(t, "vm")
		restored("stop")

		e.MustPodman(t, "start vm")
		if _, err := e.machine.Run("kill -KILL " + started()); err != nil {
			t.Fatal(err)
		}
		if code := e.MustPodman(t, "wait vm"); code == "0" {
			t.Error("the container ended with 0, although QEMU was killed")
		}
		restored("SIGKILL of QEMU")

		e.MustPodman(t, "start vm")
		started()
		e.MustPodman(t, "kill vm") // SIGKILL of the first process, the agent
		e.MustPodman(t, "wait vm")
		if nstest.Difference(before, nstest.Stable(inside.Settled())) == nil {
			t.Error("the wiring is gone, although the agent was killed")
		}
		e.MustPodman(t, "start vm")
		serves()
		e.stop(t, "vm")
		restored("SIGKILL of the agent, and a start")

		// Another container has none of the journals of the first one.
		e.MustPodman(t, "start vm")
		started()
		e.MustPodman(t, "kill vm")
		e.MustPodman(t, "rm vm")
		if said := e.refusal(t, wired+"--network container:net"); !strings.Contains(said, "guestwire-agent teardown -force") {
			t.Errorf("%s\nwant the way without a journal", said)
		}
		e.MustPodman(t, "run --rm "+wired+"--network container:net --entrypoint guestwire-agent "+Image+" teardown -own -nic eth0 -force")
		restored("teardown -force")

		const journals = "--network container:net --volume journals:/run/guestwire.lock"
		e.run(t, "vm", journals)
		started()
		e.MustPodman(t, "kill vm")
		e.MustPodman(t, "rm vm")
		e.MustPodman(t, "run --rm "+wired+journals+" "+Image+" -version")
		restored("SIGKILL of the agent, and another container with its journals")
	})

	// podman's runtime calls guestwire-agent hook, so the container has no capability, and the namespace is given back at
	// its end.
	t.Run("hook", func(t *testing.T) {
		t.Parallel()
		e.write(t, "/usr/local/bin/guestwire-agent", nstest.Program(t, "examples/guestwire-agent"))
		const config = `{"version": "1.0.0", "when": {"annotations": {"^guestwire/state$": "."}}, "stages": ["createRuntime", "poststop"],
			"hook": {"path": "/usr/local/bin/guestwire-agent", "args": ["guestwire-agent", "hook", "-nic", "eth0", "-uid", "107", "-binding", "masquerade", "-own"]}}`
		if err := e.machine.Write("/usr/share/containers/oci/hooks.d/guestwire.json", []byte(config)); err != nil {
			t.Fatal(err)
		}
		if out, err := e.machine.Run("mkdir -p /run/guestwire/vm1 /run/guestwire/vm2"); err != nil {
			t.Fatal(err, out)
		}
		hooked := func(name, state, network string) string {
			return fmt.Sprintf("run --detach --name %s --annotation guestwire/state=%s --volume /run/guestwire/%[2]s:/run/guestwire/%[2]s:ro "+
				"--user 107 --cap-drop all --entrypoint sleep %s %s inf", name, state, network, Image)
		}
		wired := func(container string) {
			t.Helper()
			pid := e.MustPodman(t, "inspect --format '{{.State.Pid}}' "+container)
			if _, err := e.machine.Run("nsenter --net=/proc/" + pid + "/ns/net ip link show eth0-tap"); err != nil {
				t.Fatal(err)
			}
		}
		unwired := func(after string) {
			t.Helper()
			nstest.Eventually(t, func() error { // conmon's podman calls poststop
				out, err := e.machine.Run("ls -A /run/guestwire/vm1 /run/guestwire.lock")
				if out != "/run/guestwire.lock:\n\n/run/guestwire/vm1:\n" {
					err = fmt.Errorf("after %s are left: %s, %v", after, out, err)
				}
				return err
			})
		}
		refused := func(want, name, state, network string) {
			t.Helper()
			_, err := e.Podman(hooked(name, state, network))
			if out, _ := e.machine.Run("cat /run/guestwire/hook.log; rm /run/guestwire/hook.log"); err == nil || !strings.Contains(out, want) {
				t.Errorf("%v, %s; want %q", err, out, want)
			}
			e.MustPodman(t, "rm --force "+name)
		}
		e.MustPodman(t, hooked("hook1", "vm1", "--network lan-hook"))
		wired("hook1")
		refused("is in use by NIC eth0", "hook2", "vm1", "--network lan-hook")
		refused("the machine's network", "hook2", "vm2", "--network host")
		wired("hook1")
		e.MustPodman(t, "restart --time 0 hook1")
		wired("hook1")
		e.MustPodman(t, "kill hook1")
		unwired("kill")
		e.MustPodman(t, "start hook1")
		wired("hook1")
		e.MustPodman(t, "rm --force --time 0 hook1")
		unwired("rm")

		e.MustPodman(t, "pod create --name pod --network lan-hook --infra-image "+Image+" --infra-command '/bin/sleep inf'")
		e.MustPodman(t, "pod start pod")
		inside := e.Namespace(t, e.MustPodman(t, "pod inspect --format '{{.InfraContainerID}}' pod"))
		inside.Settle("eth0")
		before := nstest.Stable(inside.Settled())
		e.MustPodman(t, hooked("hook1", "vm1", "--pod pod"))
		wired("hook1")
		refused("already wired for another one", "hook2", "vm2", "--pod pod")
		wired("hook1")
		e.MustPodman(t, "restart --time 0 hook1")
		wired("hook1")
		e.MustPodman(t, "stop --time 0 hook1")
		unwired("stop in a pod")
		if err := nstest.Difference(before, nstest.Stable(inside.Settled())); err != nil {
			t.Error(err)
		}
	})

	t.Run("read-only", func(t *testing.T) {
		t.Parallel()
		e.MustPodman(t, "run --detach --name readonly --read-only --network lan-readonly"+wired+"--publish 8084:8000 --volume /vm:/vm:ro "+Image+
			" -nographic -m 256 -kernel /vm/kernel -initrd /vm/initramfs -append 'console=ttyS0 no_timer_check guestwire.name=box'")
		answer(t, e.Host, "127.0.0.1:8084")
		e.stop(t, "readonly")
	})
}

// sysctlFlag is how a refusal names a sysctl that the engine has to set.
var sysctlFlag = regexp.MustCompile(`--sysctl [^ ;]+`)

// TestNetworkOfHost: the network of the machine is refused in a container, too. The NIC's name is one that the machine
// has not, so that the test cannot harm if it fails.
func TestNetworkOfHost(t *testing.T) {
	nstest.Need(t)
	if _, err := os.Stat("/proc/sys/net/core/dev_weight"); err != nil {
		nstest.LeaveOut(t, "the tests' own namespace is not the machine's")
	}
	for name, rootless := range map[string]bool{"rootful": false, "rootless": true} {
		t.Run(name, func(t *testing.T) {
			e := NewIn(t, nstest.Adopt(t, "host", "/proc/self/ns/net"), rootless)
			e.Build(t)
			said := e.refusal(t, wired+"--network host --env NIC=no-such-link")
			if !strings.Contains(said, "the machine's own") {
				t.Errorf("%s\nwant a refusal of the machine's own network", said)
			}
		})
	}
}

// TestRootless: the same in a container of an ordinary user.
func TestRootless(t *testing.T) {
	e := New(t, true)
	e.Build(t)
	e.guest = e.Guest(t, "box")
	e.Host.Listen("host", "0.0.0.0:9000")
	e.MustPodman(t, "network create --disable-dns --subnet 10.89.7.0/24 lan")

	for _, c := range []struct {
		name, flags string
		guest       string            // the line of shell, and
		said        string            // what it prints
		reach       map[string]string // what the container reaches itself
	}{
		{"redirect", "--network slirp4netns:port_handler=slirp4netns,allow_host_loopback=true",
			"nc 10.0.2.2 9000 </dev/null", "host sees 127.0.0.1",
			map[string]string{"10.0.2.2:9000": lost, "10.0.2.100:8000": closed}},
		{"masquerade", "--env BINDING=masquerade --network slirp4netns:cidr=10.0.3.0/24,allow_host_loopback=true",
			"nc 10.0.3.2 9000 </dev/null", "host sees 127.0.0.1",
			map[string]string{"10.0.3.2:9000": "host sees 127.0.0.1", "10.0.3.100:8000": "guest box"}},
		{"masquerade on a bridge", "--env BINDING=masquerade --network lan --ip 10.89.7.9",
			"ping -c 1 10.89.7.1", "1 packets received",
			map[string]string{"10.89.7.9:8000": "guest box"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sysctls := ""
			if c.name == "masquerade" { // slirp4netns has IPv6, which must be forwarded
				sysctls = strings.Join(sysctlFlag.FindAllString(e.refusal(t, wired+c.flags), -1), " ")
			}
			e.run(t, "vm", "--publish 8080:8000 "+c.flags+" "+sysctls)
			answer(t, e.Host, "127.0.0.1:8080")
			inside := e.Namespace(t, "vm")
			if said := inGuest(t, inside, c.guest); !strings.Contains(said, c.said) {
				t.Errorf("guest: %s: %q, want %q", c.guest, said, c.said)
			}
			reach(t, inside, c.reach)
			e.stop(t, "vm")
			e.MustPodman(t, "rm vm")
		})
	}
}

// process returns the number of the container's process of that name, as the machine has it.
func (e *Engine) process(container, name string) (string, error) {
	first, err := e.Podman("inspect --format '{{.State.Pid}}' " + container)
	if err != nil {
		return "", err
	}
	return e.machine.Run("pgrep --ns " + first + " --nslist pid " + name)
}
