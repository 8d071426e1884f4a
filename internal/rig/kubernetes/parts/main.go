// Command kubernetes is Kubernetes and kubectl in one program: the name by which the program is called says which part
// runs. One program links in a fifth of the time of six.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	var part *cobra.Command
	switch name := filepath.Base(os.Args[0]); name {
	case "kube-apiserver":
		part = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		part = controllers.NewControllerManagerCommand()
	case "kube-scheduler":
		part = scheduler.NewSchedulerCommand()
	case "kube-proxy":
		part = proxy.NewProxyCommand()
	case "kubelet":
		part = kubelet.NewKubeletCommand(context.Background())
	case "kubectl":
		part = kubectl.NewDefaultKubectlCommand()
	default:
		fmt.Fprintf(os.Stderr, "%s: not a part of Kubernetes; call this program as kube-apiserver, kube-controller-manager,"+
			" kube-scheduler, kube-proxy, kubelet or kubectl\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(part))
}
