// Creates a job and watches it until it ends. Exits with 0 if the job has succeeded.
//
// In Muster's sources, with go, protoc, protoc-gen-go and protoc-gen-go-grpc:
//
//	mkdir client && cp examples/clients/watch_job.go client
//	protoc -I. --go_out=client --go_opt=module=muster.io \
//	  --go-grpc_out=client --go-grpc_opt=module=muster.io proto/muster/v1/*.proto
//	cd client && go mod init muster.io && go mod tidy && go build -o watch_job watch_job.go
//	./watch_job -server HOST:7070 -tls DIR -token-file FILE
package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	mathrand "math/rand"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/local"
	"google.golang.org/grpc/status"

	musterv1 "muster.io/proto/muster/v1"
)

// How long the client retries while no coordinator answers.
const patience = 5 * time.Minute

// An access token. gRPC sends it with every call, and only over TLS.
type token string

func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(t)}, nil
}

func (token) RequireTransportSecurity() bool { return true }

// Returns a connection. `folder` has ca.crt and, unless there is a token, tls.crt and tls.key.
// Without a folder it is in plaintext, and only to this host.
func dial(server, folder, tokenFile string) (*grpc.ClientConn, error) {
	if folder == "" {
		return grpc.Dial(server, grpc.WithTransportCredentials(local.NewCredentials()))
	}
	authority, err := os.ReadFile(filepath.Join(folder, "ca.crt"))
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s: ca.crt holds no certificate", folder)
	}
	mine := filepath.Join(folder, "tls.crt")
	if _, err := os.Stat(mine); err == nil {
		pair, err := tls.LoadX509KeyPair(mine, filepath.Join(folder, "tls.key"))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(config))}
	if tokenFile != "" {
		secret, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, err
		}
		options = append(options, grpc.WithPerRPCCredentials(token(strings.TrimSpace(string(secret)))))
	}
	return grpc.Dial(server, options...)
}

// Describes an error: the message, the reason to branch on, and every fault of the request.
func explain(err error) string {
	s := status.Convert(err)
	lines := []string{fmt.Sprintf("%s: %s", s.Code(), s.Message())}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			lines = append(lines, "reason: "+d.GetReason()) // docs/reference/errors.md
		case *errdetails.BadRequest:
			for _, fault := range d.GetFieldViolations() {
				lines = append(lines, fmt.Sprintf("field %s: %s", fault.GetField(), fault.GetDescription()))
			}
		}
	}
	return strings.Join(lines, "\n")
}

// Waits between attempts, as the server says.
type retry struct {
	attempts    int
	lastSuccess time.Time
}

func (r *retry) succeeded() { r.attempts, r.lastSuccess = 0, time.Now() }

// Returns the error if another attempt is useless.
func (r *retry) wait(err error) error {
	var hint time.Duration
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			d := info.GetRetryDelay()
			hint = time.Duration(d.GetSeconds())*time.Second + time.Duration(d.GetNanos())
		}
	}
	// Without the server's hint, only Unavailable is worth a retry: it means that no server was reached.
	if hint == 0 && status.Code(err) != codes.Unavailable {
		return err
	}
	if time.Since(r.lastSuccess) > patience {
		return err
	}
	if hint == 0 {
		hint = 100 * time.Millisecond << min(r.attempts, 6)
	}
	r.attempts++
	log.Printf("%s\ntrying again in about %s", explain(err), hint)
	time.Sleep(time.Duration(float64(hint) * (1 + 0.3*mathrand.Float64())))
	return nil
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

// Creates the job. With the request id, a retry returns the job that an earlier attempt has created.
func createJob(jobs musterv1.JobServiceClient, spec *musterv1.JobSpec) (*musterv1.Job, error) {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	request := &musterv1.CreateJobRequest{Spec: spec, RequestId: fmt.Sprintf("%x", id)}
	r := retry{lastSuccess: time.Now()}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		job, err := jobs.CreateJob(ctx, request)
		cancel()
		if err == nil {
			return job, nil
		}
		if err := r.wait(err); err != nil {
			return nil, err
		}
	}
}

func hasEnded(job *musterv1.Job) bool {
	switch job.GetState() {
	case musterv1.JobState_SUCCEEDED, musterv1.JobState_FAILED, musterv1.JobState_CANCELLED:
		return true
	}
	return false
}

// Prints the job's events until it ends, and returns it. After a break, the watch continues after
// the last event.
func watchJob(jobs musterv1.JobServiceClient, name string) (*musterv1.Job, error) {
	request := &musterv1.WatchJobRequest{Name: name}
	r := retry{lastSuccess: time.Now()}
	for {
		job, err := watchOnce(jobs, request, &r)
		if errors.Is(err, io.EOF) && hasEnded(job) {
			return job, nil
		}
		if err := r.wait(err); err != nil {
			return nil, err
		}
	}
}

// Reads one stream to its end, which is the error.
func watchOnce(jobs musterv1.JobServiceClient, request *musterv1.WatchJobRequest, r *retry) (*musterv1.Job, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := jobs.WatchJob(ctx, request)
	if err != nil {
		return nil, err
	}
	var job *musterv1.Job
	for {
		message, err := stream.Recv()
		if err != nil {
			return job, err
		}
		r.succeeded()
		job = message.GetJob()
		for _, event := range message.GetEvents() {
			request.Revision = event.GetRevision()
			fmt.Printf("%s %s: %s\n", event.GetState(), event.GetReason(), event.GetMessage())
		}
		if job.GetState() == musterv1.JobState_RUNNING {
			p := job.GetProgress()
			fmt.Printf("step %d of %d, loss %.4g\n", p.GetStep(), p.GetTotalSteps(), p.GetLoss())
		}
	}
}

// The same as examples/linear.yaml.
func linearJob(name string) *musterv1.JobSpec {
	return &musterv1.JobSpec{
		Name:  name,
		Model: &musterv1.ModelSpec{Source: &musterv1.ModelSpec_Zoo{Zoo: &musterv1.ZooModel{Name: "linear"}}},
		Data: &musterv1.DataSpec{
			Source:    &musterv1.DataSpec_Linear{Linear: &musterv1.LinearData{Slope: 3, Intercept: -1, Samples: 4096}},
			BatchSize: 64,
		},
		Training: &musterv1.TrainingSpec{
			Length: &musterv1.TrainingSpec_Epochs{Epochs: 10},
			Optimizer: &musterv1.Optimizer{
				Kind: &musterv1.Optimizer_Sgd{Sgd: &musterv1.Sgd{LearningRate: 0.1}},
			},
		},
		Resources: &musterv1.ResourceSpec{Workers: &musterv1.WorkerCount{Min: 1, Max: 1}, Ps: 1},
	}
}

func main() {
	server := flag.String("server", "127.0.0.1:7070", "the coordinator")
	folder := flag.String("tls", "", "folder with ca.crt, and tls.crt and tls.key if there is no token")
	tokenFile := flag.String("token-file", "", "file with a token of scope submit")
	name := flag.String("name", "linear", "of the job")
	flag.Parse()
	connection, err := dial(*server, *folder, *tokenFile)
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	jobs := musterv1.NewJobServiceClient(connection)
	job, err := createJob(jobs, linearJob(*name))
	if err != nil {
		log.Fatal(explain(err))
	}
	fmt.Printf("created %s\n", job.GetName())
	job, err = watchJob(jobs, job.GetName())
	if err != nil {
		log.Fatal(explain(err))
	}
	fmt.Printf("%s: %s\n", job.GetName(), job.GetState())
	if job.GetState() != musterv1.JobState_SUCCEEDED {
		os.Exit(1)
	}
}
