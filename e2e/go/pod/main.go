// The program in pods of tests:
//
//	pod             waits for SIGTERM and reaps child processes: the pause container of pods, and PID 1 of a node
//	pod serve TEXT  answers every HTTP request on port 8080 with TEXT
//	pod get URL     prints the response of URL; retries for a minute
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	switch arguments := os.Args[1:]; {
	case len(arguments) == 0:
		pause()
	case len(arguments) == 2 && arguments[0] == "serve":
		serve(arguments[1])
	case len(arguments) == 2 && arguments[0] == "get":
		get(arguments[1])
	default:
		exit(fmt.Errorf("usage: pod [serve TEXT | get URL], not %q", arguments))
	}
}

// pause reaps child processes until SIGINT or SIGTERM. PID 1 becomes the parent of orphaned processes.
func pause() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGINT, syscall.SIGTERM)
	// Children that ended before signal.Notify cause no signal.
	reap()
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		reap()
	}
}

func reap() {
	for {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 && err != syscall.EINTR {
			return
		}
	}
}

func serve(text string) {
	exit(http.ListenAndServe(":8080", http.HandlerFunc(func(answer http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(answer, text)
	})))
}

func get(url string) {
	client := http.Client{Timeout: 5 * time.Second}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		answer, err := client.Get(url)
		if err == nil {
			_, err = io.Copy(os.Stdout, answer.Body)
			exit(err)
		}
		fmt.Fprintln(os.Stderr, err)
		if time.Now().After(deadline) {
			exit(err)
		}
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
