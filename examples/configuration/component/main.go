// A component whose configuration is policies:
//
//	component serve                        reads the policies of POLICIES, and serves them on port 8080
//	component reconfigure policies JSON    gives a notification to the server in this container
//	component hang policies JSON           never answers, for tests of time limits
//
// The environment: POLICIES, the folder in which the ConfigMap of the subscription is mounted (default /etc/policies), and
// MEMORY_LIMIT, the largest min_memory that the component accepts (default 1024).
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	address = "127.0.0.1:8080"
	// Proviso takes the exit codes 1 to 125 as a rejection, and sends the notification again after any other one.
	exitRejected = 3
	exitFailed   = 126
	// The prefix of the files with policies. Files with other names are not policies that apply.
	prefix = "items."
	// The largest notification: one policy has at most 512 KiB.
	maxBody = 16 << 20
)

// Body is the body of a policy, as ONAP's components get it.
type Body struct {
	Name    string         `json:"policyName"`
	Version string         `json:"policyVersion"`
	Config  map[string]any `json:"config"`
	// Omitted is true if the notification does not have the content: the file of the policy has it.
	Omitted bool `json:"configOmitted,omitempty"`
}

// ID returns the id of the policy: its name without the version and the extension.
func (body Body) ID() string {
	return strings.TrimSuffix(strings.TrimSuffix(body.Name, ".xml"), "."+body.Version)
}

// Notification has the changes of the component's policies.
type Notification struct {
	Updated []Body `json:"updated_policies"`
	Removed []Body `json:"removed_policies"`
}

// rejection is the error of a policy that the component does not accept.
type rejection struct{ message string }

func (err rejection) Error() string { return err.message }

// Component holds the policies that apply.
type Component struct {
	lock     sync.Mutex
	policies map[string]Body
	// Updates counts the notifications that the component has accepted.
	updates int
	folder  string
	limit   float64
}

func main() {
	switch arguments := os.Args[1:]; {
	case len(arguments) == 1 && arguments[0] == "serve":
		fail(serve(), 1)
	case len(arguments) == 3 && arguments[0] == "reconfigure" && arguments[1] == "policies":
		reconfigure(arguments[2])
	case len(arguments) == 3 && arguments[0] == "hang":
		time.Sleep(time.Hour)
	default:
		fail(fmt.Errorf("usage: component serve | component reconfigure policies JSON"), exitFailed)
	}
}

func fail(err error, code int) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(code)
}

func serve() error {
	component := &Component{policies: map[string]Body{}, folder: environment("POLICIES", "/etc/policies")}
	limit, err := strconv.ParseFloat(environment("MEMORY_LIMIT", "1024"), 64)
	if err != nil {
		return fmt.Errorf("MEMORY_LIMIT: %w", err)
	}
	component.limit = limit
	component.read()
	http.HandleFunc("GET /", component.show)
	http.HandleFunc("POST /policies", component.update)
	return http.ListenAndServe(":8080", nil)
}

func environment(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// read takes the policies of the folder. A policy that is not acceptable is left out: its absence must not stop the component.
func (component *Component) read() {
	files, _ := filepath.Glob(filepath.Join(component.folder, prefix+"*"))
	for _, file := range files {
		body, err := readBody(file)
		if err == nil {
			err = component.check(body)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, filepath.Base(file), err)
			continue
		}
		component.policies[strings.TrimPrefix(filepath.Base(file), prefix)] = body
	}
}

func readBody(file string) (Body, error) {
	var body Body
	text, err := os.ReadFile(file)
	if err != nil {
		return body, err
	}
	return body, json.Unmarshal(text, &body)
}

// check returns an error if the component cannot work with this policy.
func (component *Component) check(body Body) error {
	if memory, ok := body.Config["min_memory"].(float64); ok && memory > component.limit {
		return rejection{fmt.Sprintf("%s: min_memory is %v, at most %v are possible", body.ID(), memory, component.limit)}
	}
	return nil
}

// apply takes all changes of a notification, or none.
func (component *Component) apply(notification Notification) error {
	component.lock.Lock()
	defer component.lock.Unlock()
	updated := map[string]Body{}
	for _, body := range notification.Updated {
		if body.Omitted {
			stored, err := readBody(filepath.Join(component.folder, prefix+body.ID()))
			if err != nil {
				return err
			}
			// The kubelet writes the file some time after the notification.
			if stored.Version != body.Version {
				return fmt.Errorf("%s: the file has version %s, not %s yet", body.ID(), stored.Version, body.Version)
			}
			body = stored
		}
		if err := component.check(body); err != nil {
			return err
		}
		updated[body.ID()] = body
	}
	for id, body := range updated {
		component.policies[id] = body
	}
	for _, body := range notification.Removed {
		delete(component.policies, removedID(body))
	}
	component.updates++
	return nil
}

// removedID returns the id of a removed policy, whose version may not be known.
func removedID(body Body) string {
	if body.Version == "" {
		return body.Name
	}
	return body.ID()
}

func (component *Component) show(answer http.ResponseWriter, _ *http.Request) {
	component.lock.Lock()
	defer component.lock.Unlock()
	type policy struct {
		Version string         `json:"version"`
		Config  map[string]any `json:"config"`
	}
	policies := map[string]policy{}
	for id, body := range component.policies {
		policies[id] = policy{body.Version, body.Config}
	}
	answer.Header().Set("content-type", "application/json")
	_ = json.NewEncoder(answer).Encode(map[string]any{"policies": policies, "updates": component.updates})
}

func (component *Component) update(answer http.ResponseWriter, request *http.Request) {
	var notification Notification
	err := json.NewDecoder(http.MaxBytesReader(answer, request.Body, maxBody)).Decode(&notification)
	if err != nil {
		http.Error(answer, err.Error(), http.StatusBadRequest)
		return
	}
	switch err := component.apply(notification); {
	case errors.As(err, &rejection{}):
		http.Error(answer, err.Error(), http.StatusUnprocessableEntity)
	case err != nil:
		http.Error(answer, err.Error(), http.StatusServiceUnavailable)
	}
}

// reconfigure gives a notification to the server. It exits with the code that Proviso understands.
func reconfigure(notification string) {
	answer, err := http.Post("http://"+address+"/policies", "application/json", bytes.NewBufferString(notification))
	if err != nil {
		fail(err, exitFailed)
	}
	text, _ := io.ReadAll(answer.Body)
	switch {
	case answer.StatusCode < 300:
	case answer.StatusCode == http.StatusUnprocessableEntity || answer.StatusCode == http.StatusBadRequest:
		fail(errors.New(strings.TrimSpace(string(text))), exitRejected)
	default:
		fail(errors.New(strings.TrimSpace(string(text))), exitFailed)
	}
}
