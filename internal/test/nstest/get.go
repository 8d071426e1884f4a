package nstest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// Get asks a web server from the namespace, and returns the page.
func (n *Namespace) Get(url string) (page string, err error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, address string) (net.Conn, error) { return n.DialTCP(ctx, address) },
	}}
	answer, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, answer.Status)
	}
	return string(body), err
}
