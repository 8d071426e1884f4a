package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/guestwire/guestwire/internal/test/nstest"
)

// seccompProfile is the one of the documentation.
const seccompProfile = "../../../docs/confinement/seccomp-launcher.json"

// TestSeccomp: the launcher lives under the profile of the documentation, and what no launcher needs is refused.
func TestSeccomp(t *testing.T) {
	n := nstest.NewNetwork(t)
	self := copyOfSelf(t)
	program := filepath.Join(nstest.Dir(t), "filter")
	filter, err := compile(t, seccompProfile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, filter, 0o644); err != nil {
		t.Fatal(err)
	}
	under := func(args ...string) []string {
		return append(unprivileged(n, "true", "env", filtered+"="+program, self), args...)
	}

	out, err := output(unprivileged(n, "true", "env", probe+"=1", self)...)
	if want := "can: netlink tcp unix program passwd file memfd kill\ncannot: shadow sysctl namespace\n"; err != nil || out != want {
		t.Errorf("without the profile: %v, %s\nwant %s", err, out, want)
	}
	out, err = output(under("/usr/bin/env", probe+"=1", self)...)
	if want := "can: passwd file\ncannot: netlink tcp unix program shadow sysctl namespace memfd kill\n"; err != nil || out != want {
		t.Errorf("under the profile: %v, %s\nwant %s", err, out, want)
	}
	launcherLives(t, n, self, filepath.Join(n.State, "resolv.conf"), under(nstest.Program(t, "examples/launcher")))
}

// filtered makes this program take on the filter in the file, and become the program in its arguments.
const filtered = "GUESTWIRE_CONFINE_FILTER"

func beFiltered(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	os.Unsetenv(filtered)
	environment := os.Environ()
	const size = int(unsafe.Sizeof(unix.SockFilter{}))
	list := unsafe.Slice((*unix.SockFilter)(unsafe.Pointer(&text[0])), len(text)/size)
	program := unix.SockFprog{Len: uint16(len(list)), Filter: &list[0]}
	runtime.LockOSThread() // whose filter it is, and which becomes the program
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return unix.Exec(os.Args[1], os.Args[1:], environment)
}

// compile makes a profile, in the JSON form of container engines, a program for the kernel (seccomp(2)).
func compile(t *testing.T, path string) ([]byte, error) {
	var profile struct {
		DefaultAction   string
		DefaultErrnoRet uint32
		Syscalls        []struct {
			Names    []string
			Action   string
			ErrnoRet uint32
			Args     []struct {
				Index           uint32
				Value, ValueTwo uint64
				Op              string
			}
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &profile); err != nil {
		return nil, err
	}
	if profile.DefaultAction != "SCMP_ACT_ERRNO" {
		return nil, errors.New("the profile allows what it does not name")
	}
	architecture := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	numbers := numbers(t)
	const load, equal, and, answer = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	const number, arch, args = 0, 4, 16 // offsets in struct seccomp_data; the low half of an argument comes first
	refuse := func(errno uint32) unix.SockFilter {
		return unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ERRNO | errno}
	}
	list := []unix.SockFilter{{Code: load, K: arch}, {Code: equal, Jt: 1, K: architecture}, refuse(uint32(unix.EPERM)), {Code: load, K: number}}
	for _, s := range profile.Syscalls {
		verdict := unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ALLOW}
		if s.Action == "SCMP_ACT_ERRNO" {
			verdict = refuse(s.ErrnoRet)
		} else if s.Action != "SCMP_ACT_ALLOW" {
			return nil, fmt.Errorf("action %s", s.Action)
		}
		var conditions []unix.SockFilter
		for _, a := range s.Args {
			conditions = append(conditions, unix.SockFilter{Code: load, K: args + 8*a.Index})
			value := a.Value
			switch a.Op {
			case "SCMP_CMP_EQ":
			case "SCMP_CMP_MASKED_EQ":
				conditions = append(conditions, unix.SockFilter{Code: and, K: uint32(a.Value)})
				value = a.ValueTwo
			default:
				return nil, fmt.Errorf("comparison %s", a.Op)
			}
			conditions = append(conditions, unix.SockFilter{Code: equal, K: uint32(value)})
		}
		conditions = append(conditions, verdict, unix.SockFilter{Code: load, K: number})
		for i := range conditions {
			if conditions[i].Code == equal { // what differs goes to where the number is loaded again
				conditions[i].Jf = uint8(len(conditions) - 2 - i)
			}
		}
		for _, name := range s.Names {
			nr, ok := numbers[strings.ToUpper(name)]
			if !ok && runtime.GOARCH == "amd64" {
				return nil, fmt.Errorf("no system call %s", name)
			}
			if ok {
				list = append(list, unix.SockFilter{Code: equal, Jf: uint8(len(conditions)), K: nr})
				list = append(list, conditions...)
			}
		}
	}
	list = append(list, refuse(profile.DefaultErrnoRet))
	return unsafe.Slice((*byte)(unsafe.Pointer(&list[0])), len(list)*int(unsafe.Sizeof(list[0]))), nil
}

// numbers are those of the system calls, as golang.org/x/sys has them.
func numbers(t *testing.T) map[string]uint32 {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+runtime.GOARCH+".go"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]uint32{}
	for _, m := range regexp.MustCompile(`(?m)^\tSYS_(\w+) += (\d+)$`).FindAllSubmatch(text, -1) {
		n, err := strconv.ParseUint(string(m[2]), 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		all[string(m[1])] = uint32(n)
	}
	return all
}
