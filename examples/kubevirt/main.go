// Kubevirt answers KubeVirt's hooks: it connects the domain's interfaces to the taps in the pod, and answers the guest.
//
//	kubevirt                         the sidecarImage of a network binding: hooks v1alpha3
//	kubevirt -socket PATH            the domain hook of a Plugin (KubeVirt's enhancement 190), in the pod, too
//	kubevirt -socket PATH -agent ... the node hook of a Plugin, as root on a node, which wires the NICs
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guestwire/guestwire/examples/directory"
	"github.com/guestwire/guestwire/examples/logqueue"
)

func main() {
	text := logqueue.New(os.Stderr, func(lines int) string {
		return fmt.Sprintf("kubevirt: %d lines were lost: the reader of standard error was too slow, or gone\n", lines)
	})
	s := &server{log: slog.New(slog.NewTextHandler(text, nil))}
	flag.StringVar(&s.binding, "binding", cmp.Or(os.Getenv("NETWORK_BINDING_PLUGIN_NAME"), "guestwire"), "the `NAME` of the network binding in KubeVirt's configuration")
	flag.StringVar(&s.state, "state", "/run/guestwire", "the `DIR` of the pod's records; with -agent, that of a directory for each pod's UID")
	flag.StringVar(&s.agent, "agent", "", "the `PROGRAM` agent, which the node hook calls")
	flag.StringVar(&s.config, "config", "", "with -agent: the `FILE` with the configuration for guestwire-agent setup")
	flag.StringVar(&s.proc, "proc", "/proc", "with -agent: where the node's /proc `DIR` is")
	// KubeVirt knows the sockets of a pod by their names alone, so those of two sidecars must differ.
	socket := flag.String("socket", "/var/run/kubevirt-hooks/"+cmp.Or(os.Getenv("CONTAINER_NAME"), "guestwire")+".sock", "the `PATH` of the socket")
	flag.Parse()
	err := s.serve(*socket)
	if err != nil {
		s.log.Error("serve", "error", logqueue.Short(err.Error()))
	}
	_ = text.Close() // what the reader has not taken is lost
	if err != nil {
		os.Exit(1)
	}
}

// ending are the signals that end the server before KubeVirt has asked for its hooks.
var ending = []os.Signal{syscall.SIGTERM, syscall.SIGHUP, os.Interrupt}

// serve answers calls until KubeVirt's Shutdown, or one of the signals.
func (s *server) serve(socket string) error {
	dir, err := directory.Open(filepath.Dir(socket))
	if err != nil {
		return err
	}
	defer dir.Close()
	name := filepath.Base(socket)
	_ = dir.Remove(name) // of a process before this one
	listener, err := directory.Listen(dir, name)
	if err != nil {
		return err
	}
	defer dir.Remove(name)
	s.ctx, s.stop = signal.NotifyContext(context.Background(), ending...)
	defer s.waits.Wait()
	defer s.stop()
	g := grpc.NewServer(grpc.ForceServerCodec(codec{}), grpc.UnknownServiceHandler(s.handle))
	context.AfterFunc(s.ctx, g.GracefulStop)
	s.log.Info("listens", "socket", socket, "binding", s.binding)
	return g.Serve(listener)
}

// handle answers a call.
func (s *server) handle(_ any, stream grpc.ServerStream) error {
	var in message
	if err := stream.RecvMsg(&in); err != nil {
		return err
	}
	method, _ := grpc.MethodFromServerStream(stream)
	out, err := s.answer(stream.Context(), method, in)
	if err != nil {
		failed := status.Convert(err)
		return status.Error(failed.Code(), logqueue.Short(failed.Message())) // KubeVirt shows it in the VM's status
	}
	return stream.SendMsg(out)
}

func (s *server) answer(ctx context.Context, method string, in message) (message, error) {
	switch method {
	case "/kubevirt.hooks.info.Info/Info":
		// A pod's containers get SIGTERM at once, when the guest has yet to shut down; Shutdown comes after that.
		signal.Ignore(ending...)
		point := func(name string) string { return string(encode(message{1: {name}})) }
		return message{1: {"guestwire"}, 3: {point("OnDefineDomain"), point("Shutdown")}, 4: {"v1alpha3"}}, nil
	case "/kubevirt.hooks.v1alpha3.Callbacks/OnDefineDomain":
		domain, err := s.define(in.get(1), in.get(2))
		return message{1: {domain}}, err
	case "/kubevirt.hooks.v1alpha3.Callbacks/PreCloudInitIso":
		return message{1: {in.get(1)}, 3: {in.get(3)}}, nil
	case "/kubevirt.hooks.v1alpha3.Callbacks/Shutdown":
		s.stop()
		return nil, nil
	case "/kubevirt.hooks.plugins.v1alpha1.DomainHookService/MutateDomain":
		domain, err := s.define(in.get(2), in.get(3))
		return message{1: {domain}}, err
	case "/kubevirt.hooks.plugins.v1alpha1.NodeHookService/ExecuteNodeHook":
		node, err := decode([]byte(in.get(3)))
		if err != nil {
			return nil, err
		}
		return nil, s.nodeHook(ctx, in.get(1), in.get(2), node.get(1))
	}
	return nil, status.Error(codes.Unimplemented, method)
}
