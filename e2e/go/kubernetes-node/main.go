// The programs of a full node that are not in its control plane, and Helm, in one file. The name of a link selects the program:
// `kubelet -> kubernetes-node`.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	helm "helm.sh/helm/v4/pkg/cmd"
	"helm.sh/helm/v4/pkg/kube"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "kube-proxy":
		os.Exit(cli.Run(proxy.NewProxyCommand()))
	case "kubelet":
		os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
	case "helm":
		os.Exit(runHelm())
	default:
		fmt.Fprintf(os.Stderr, "%s: call this program by the name of a program of a node\n", name)
		os.Exit(2)
	}
}

// runHelm runs Helm like its own main function, and returns the exit code.
func runHelm() int {
	// The field manager of the objects that Helm applies. The default would be the name of this file.
	kube.ManagedFieldsManager = "helm"
	command, err := helm.NewRootCmd(os.Stdout, os.Args[1:], helm.SetupLogging)
	if err != nil {
		slog.Warn("command failed", slog.Any("error", err))
		return 1
	}
	if err := command.Execute(); err != nil {
		if failed, ok := errors.AsType[helm.CommandError](err); ok {
			return failed.ExitCode
		}
		return 1
	}
	return 0
}
