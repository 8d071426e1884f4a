// The broker lets a guest's TLS go on to the names of a list, and its HTTP to one host, with a credential that the
// guest never sees:
//
//	broker TOKEN-FILE https://HOST NAME...
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/guestwire/guestwire/phase2"
)

func main() {
	log.SetFlags(0)
	token, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	host, err := url.Parse(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(host) // also the Host that the server sees
		r.Out.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}}
	go func() {
		log.Fatal(http.Serve(listen(":15080"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			log.Printf("http %q", r.Host)
			if r.Host != host.Host {
				http.Error(w, "not allowed", http.StatusForbidden)
				return
			}
			proxy.ServeHTTP(w, r)
		})))
	}()
	for l := listen(":15443"); ; {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go passOn(c.(*net.TCPConn), os.Args[3:])
	}
}

// listen does without Multipath TCP, by which the kernel does not say where a connection was opened to.
func listen(at string) net.Listener {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	l, err := config.Listen(context.Background(), "tcp", at)
	if err != nil {
		log.Fatal(err)
	}
	return l
}

// passOn connects a TLS client with the server that it names, whatever address it has for that.
func passOn(c *net.TCPConn, names []string) {
	defer c.Close()
	to, err := phase2.OriginalDestination(c)
	if err != nil {
		log.Print(err) // such as a connection that no divert led here
		return
	}
	name, hello := "", bytes.Buffer{}
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	tls.Server(reader{c, io.TeeReader(c, &hello)}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		name = h.ServerName
		return nil, errors.New("the name is enough")
	}}).Handshake()
	c.SetReadDeadline(time.Time{})
	log.Printf("tls %q %v", name, to)
	if !slices.Contains(names, name) {
		return
	}
	server, err := net.DialTimeout("tcp", net.JoinHostPort(name, "443"), 10*time.Second)
	if err != nil {
		log.Print(err)
		return
	}
	defer server.Close()
	go func() {
		io.Copy(server, io.MultiReader(&hello, c))
		server.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(c, server)
}

// reader is a connection whose writes get lost: the alert is not the client's.
type reader struct {
	net.Conn
	from io.Reader
}

func (r reader) Read(p []byte) (int, error)  { return r.from.Read(p) }
func (r reader) Write(p []byte) (int, error) { return len(p), nil }
