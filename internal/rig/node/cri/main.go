// Command cri makes one call of the Container Runtime Interface (CRI), as a kubelet does.
//
//	cri -socket PATH [-timeout DURATION] METHOD <request.json >response.json
//
// METHOD is a unary method of runtime.v1's RuntimeService or ImageService, such as RunPodSandbox. The request is the
// method's message in JSON with the field names of the .proto file; an empty input is an empty message. Unknown fields
// are errors. An error of the engine is printed whole to standard error, and the exit status is 1. The command waits
// for the engine's socket until the timeout.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	socket := flag.String("socket", "", "the engine's socket")
	timeout := flag.Duration("timeout", time.Minute, "limit of the call")
	flag.Parse()
	if err := run(*socket, *timeout, flag.Args(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(socket string, timeout time.Duration, args []string, in io.Reader, out io.Writer) error {
	if socket == "" || len(args) != 1 {
		return errors.New("usage: cri -socket PATH [-timeout DURATION] METHOD <request.json >response.json")
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		// The socket of an engine that starts is there within milliseconds. A busy engine takes its time to accept.
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: timeout,
			Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond}}))
	if err != nil {
		return err
	}
	defer conn.Close()
	return call(ctx, args[0], in, out, cri.NewRuntimeServiceClient(conn), cri.NewImageServiceClient(conn))
}

// call makes the call by the first of the clients that has the method.
func call(ctx context.Context, method string, in io.Reader, out io.Writer, clients ...any) error {
	for _, client := range clients {
		f := reflect.ValueOf(client).MethodByName(method)
		if !f.IsValid() {
			continue
		}
		request := reflect.New(f.Type().In(1).Elem())
		text, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(text)) > 0 {
			d := json.NewDecoder(bytes.NewReader(text))
			d.DisallowUnknownFields()
			if err := d.Decode(request.Interface()); err != nil {
				return fmt.Errorf("%s: request: %w", method, err)
			}
		}
		result := f.Call([]reflect.Value{reflect.ValueOf(ctx), request})
		if err, _ := result[1].Interface().(error); err != nil {
			return err
		}
		if _, ok := result[0].Interface().(grpc.ClientStream); ok {
			return fmt.Errorf("%s: a stream, not a single answer", method)
		}
		return json.NewEncoder(out).Encode(result[0].Interface())
	}
	return fmt.Errorf("%s: no method of the CRI", method)
}
