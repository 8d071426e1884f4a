package commandline

import (
	"fmt"
	"net"
	"os"
)

// ReadyVariable names the socket of a service manager, a path, or @NAME for an abstract one (sd_notify(3)).
// ReadyMessage is what ends the start of a service there, of systemd's Type=notify.
const (
	ReadyVariable = "NOTIFY_SOCKET"
	ReadyMessage  = "READY=1"
)

// Supervised reports whether a service manager waits for Ready.
func Supervised() bool { return os.Getenv(ReadyVariable) != "" }

// Ready tells the service manager that the program is ready. Without a service manager it does nothing.
func Ready() error {
	name := os.Getenv(ReadyVariable)
	if name == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: name})
	if err == nil {
		defer conn.Close()
		_, err = conn.Write([]byte(ReadyMessage))
	}
	if err != nil {
		return fmt.Errorf("the service manager does not learn that the start is complete: %s=%s: %w: unset the variable where no manager waits", ReadyVariable, name, err)
	}
	return nil
}
