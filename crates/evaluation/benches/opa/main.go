// Evaluates a chain of request policies with OPA, for the benchmark `chain`: in this process with OPA's Go library, or by one request to
// an OPA server for each policy, as the engine that the DCM project published does it.
//
// With arguments, this program is the command `opa`. Without, it reads commands from the standard input, one JSON object in a line, and
// answers each with one line.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/open-policy-agent/opa/cmd"
	"github.com/open-policy-agent/opa/v1/rego"
)

// command is one line of the standard input: either the policies of a chain, or evaluations of that chain.
type command struct {
	Policies   []string        `json:"policies"`
	Engine     string          `json:"engine"`
	Payload    json.RawMessage `json:"payload"`
	Iterations int             `json:"iterations"`
}

type answer struct {
	Nanoseconds []int64         `json:"nanoseconds"`
	Payload     json.RawMessage `json:"payload"`
}

type object = map[string]any

// policy evaluates one policy.
type policy func(ctx context.Context, input object) (object, error)

type chains struct {
	ctx     context.Context
	server  string
	library []policy
	remote  []policy
}

func main() {
	if len(os.Args) > 1 {
		if cmd.Command(nil, "OPA").Execute() != nil {
			os.Exit(1)
		}
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	server, url, err := start()
	if err != nil {
		return err
	}
	defer func() {
		server.Process.Kill()
		server.Wait()
	}()
	all := chains{ctx: context.Background(), server: url}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	output := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var next command
		if err := json.Unmarshal(line, &next); err != nil {
			return err
		}
		result := answer{}
		if next.Policies != nil {
			err = all.load(next.Policies)
		} else {
			result, err = all.measure(next)
		}
		if err != nil {
			return err
		}
		if err := output.Encode(result); err != nil {
			return err
		}
	}
}

// start starts an OPA server on loopback, and returns it with its URL when it answers.
func start() (*exec.Cmd, string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	address := listener.Addr().String()
	listener.Close()
	server := exec.Command(os.Args[0], "run", "--server", "--addr", address, "--log-level", "error",
		"--skip-version-check")
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		return nil, "", err
	}
	url := "http://" + address
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if response, err := http.Get(url + "/health"); err == nil {
			response.Body.Close()
			return server, url, nil
		}
	}
	server.Process.Kill()
	server.Wait()
	return nil, "", fmt.Errorf("the OPA server at %s does not answer", url)
}

// load prepares the policies for both engines. Policy number N has the package `bench.pN` and the rule `result`.
func (c *chains) load(sources []string) error {
	c.library, c.remote = nil, nil
	for number, source := range sources {
		query := fmt.Sprintf("data.bench.p%d.result", number)
		prepared, err := rego.New(rego.Query(query), rego.Module(query, source)).PrepareForEval(c.ctx)
		if err != nil {
			return err
		}
		c.library = append(c.library, library(prepared))
		if err := c.put(fmt.Sprintf("%s/v1/policies/p%d", c.server, number), source); err != nil {
			return err
		}
		c.remote = append(c.remote, remote(fmt.Sprintf("%s/v1/data/bench/p%d/result", c.server, number)))
	}
	return nil
}

func (c *chains) put(url, source string) error {
	request, err := http.NewRequestWithContext(c.ctx, http.MethodPut, url, bytes.NewBufferString(source))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	return err
}

func library(prepared rego.PreparedEvalQuery) policy {
	return func(ctx context.Context, input object) (object, error) {
		results, err := prepared.Eval(ctx, rego.EvalInput(input))
		if err != nil {
			return nil, err
		}
		if len(results) != 1 {
			return nil, fmt.Errorf("%d results", len(results))
		}
		return results[0].Expressions[0].Value.(object), nil
	}
}

func remote(url string) policy {
	return func(ctx context.Context, input object) (object, error) {
		body, err := json.Marshal(object{"input": input})
		if err != nil {
			return nil, err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		var answer struct {
			Result object `json:"result"`
		}
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
			return nil, err
		}
		// The connection is used again only if the body was read to its end.
		_, err = io.Copy(io.Discard, response.Body)
		if err == nil && answer.Result == nil {
			err = fmt.Errorf("%s: no result", url)
		}
		return answer.Result, err
	}
}

// measure evaluates a chain several times, each from the bytes of the payload to the bytes of the final payload.
func (c *chains) measure(command command) (answer, error) {
	policies := c.library
	if command.Engine == "server" {
		policies = c.remote
	}
	var result answer
	for range command.Iterations {
		start := time.Now()
		payload, err := evaluate(c.ctx, policies, command.Payload)
		if err != nil {
			return result, err
		}
		result.Nanoseconds = append(result.Nanoseconds, time.Since(start).Nanoseconds())
		result.Payload = payload
	}
	return result, nil
}

// evaluate passes the payload from policy to policy. It collects the constraints, and validates none: Proviso validates them.
func evaluate(ctx context.Context, policies []policy, text []byte) ([]byte, error) {
	var original, payload object
	if err := json.Unmarshal(text, &original); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &payload); err != nil {
		return nil, err
	}
	constraints := object{}
	for _, policy := range policies {
		result, err := policy(ctx, object{
			"originalPayload": original,
			"payload":         payload,
			"constraints":     constraints,
			"user":            "ana",
			"tenant":          "blue",
			"serviceProvider": object{"value": nil, "constraints": object{"patterns": []any{}}},
		})
		if err != nil {
			return nil, err
		}
		patch, _ := result["patch"].(object)
		payload = merge(payload, patch)
		added, _ := result["constraints"].(object)
		for field, constraint := range added {
			constraints[field] = constraint
		}
	}
	return json.Marshal(payload)
}

// merge applies a JSON merge patch (RFC 7396).
func merge(target, patch object) object {
	if target == nil {
		target = object{}
	}
	for key, value := range patch {
		switch value := value.(type) {
		case nil:
			delete(target, key)
		case object:
			inner, _ := target[key].(object)
			target[key] = merge(inner, value)
		default:
			target[key] = value
		}
	}
	return target
}
