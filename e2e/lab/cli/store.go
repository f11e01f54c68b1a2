package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"ichor.maesh.dev/ichor/e2e/lab/s3"
)

// Ways to have an S3 store; UpOptions.S3.
const (
	// S3Auto starts the store where its server is built.
	S3Auto = "auto"
	// S3On starts it, and builds the server first where it must.
	S3On = "on"
	// S3Off starts none.
	S3Off = "off"
)

// howToStore is what a person has to do for a store.
const howToStore = `start the lab with "--s3 on", which builds its server versitygw (once, some minutes, in Ichor's source tree), or name one with $` + s3.EnvServer

// startStore starts the S3 store, as far as it is wanted and there.
func (s *Session) startStore(ctx context.Context) error {
	if s.opt.S3 == "" || s.opt.S3 == S3Off {
		return nil
	}
	server, err := s3.Find()
	if errors.Is(err, s3.ErrNoServer) && s.opt.S3 == S3On {
		s.say("building the S3 server; that takes some minutes, once")
		server, err = s3.Build(ctx, ".", os.Stderr)
	}
	if errors.Is(err, s3.ErrNoServer) && s.opt.S3 == S3Auto {
		s.say("no S3 store, backups have nowhere to go: %s", howToStore)
		return nil
	}
	if err != nil {
		return fmt.Errorf("start the S3 store: %w", err)
	}
	s.store, err = s3.Start(ctx, s3.Options{Dir: filepath.Join(s.opt.State, "s3"), Server: server, Log: s.opt.Log, OnEvent: s.emit})
	return err
}

// closeStore ends the store, where there is one.
func (s *Session) closeStore() error {
	if s.store == nil {
		return nil
	}
	return s.store.Close()
}

// storeVariables are what clients of S3 read from the environment.
func (s *Session) storeVariables() []variable {
	if s.store == nil {
		return nil
	}
	access, secret := s.store.Keys()
	return []variable{
		{"ICHOR_LAB_S3_ENDPOINT", s.store.Endpoint()},
		{"ICHOR_LAB_S3_BUCKET", s.store.Bucket()},
		{"AWS_ENDPOINT_URL_S3", s.store.Endpoint()},
		{"AWS_REGION", s3.Region},
		{"AWS_ACCESS_KEY_ID", access},
		{"AWS_SECRET_ACCESS_KEY", secret},
	}
}

// StoreInfo is what "ichor-lab s3 show" shows.
type StoreInfo struct {
	Endpoint string `json:"endpoint"`
	Bucket   string `json:"bucket"`
	Region   string `json:"region"`
	// Faults in force.
	Faults []s3.Fault `json:"faults"`
	// Requests by operation.
	Requests map[string]int `json:"requests"`
}

// StoreAct is one thing that is done to the store: show, heal, a fault, or rot of an object.
type StoreAct struct {
	Act   string   `json:"act"`
	Fault s3.Fault `json:"fault,omitzero"`
	// Bucket and Key of the object that rots; an empty bucket is the lab's.
	Bucket string `json:"bucket,omitempty"`
	Key    string `json:"key,omitempty"`
}

func (s *Session) actOnStore(_ context.Context, a StoreAct) (StoreInfo, error) {
	if s.store == nil {
		return StoreInfo{}, fmt.Errorf("this lab has no S3 store: %s", howToStore)
	}
	var err error
	switch a.Act {
	case "show":
	case "heal":
		s.store.Heal()
	case "rot":
		if a.Bucket == "" {
			a.Bucket = s.store.Bucket()
		}
		err = s.store.Rot(a.Bucket, a.Key)
	default:
		err = s.store.Fault(a.Fault)
	}
	return StoreInfo{
		Endpoint: s.store.Endpoint(), Bucket: s.store.Bucket(), Region: s3.Region,
		Faults: s.store.Faults(), Requests: s.store.Requests(),
	}, err
}

// Store does something to the S3 store and says how it is afterwards.
func (c *Client) Store(ctx context.Context, a StoreAct) (StoreInfo, error) {
	return ask[StoreInfo](ctx, c, "/s3", a)
}
