package talos

import (
	"context"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/client"
)

// Client makes calls to one node with one certificate (or, in maintenance mode, none). Its methods return *Error.
type Client struct {
	api      *client.Client
	endpoint string
	timeout  time.Duration
	scrub    *Scrubber
	now      func() time.Time
	// drop takes the client out of its pool; nil where it is not pooled.
	drop func()

	mu       sync.Mutex
	inflight int
	closing  bool
	closed   bool
}

// Endpoint that is dialled.
func (c *Client) Endpoint() string { return c.endpoint }

// Close closes the connection when the last call on it has ended.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = true
	c.closeIfIdle()
}

// closeIfIdle is called with the lock held.
func (c *Client) closeIfIdle() {
	if c.closing && !c.closed && c.inflight == 0 {
		c.closed = true
		_ = c.api.Close() // an error of closing a connection tells nothing
	}
}

// options of one call.
type options struct {
	op string
	// write: the call changes something, so a lost answer leaves its outcome unknown.
	write bool
	// mayHang: the call hangs on healthy nodes (etcd before bootstrap), so a timeout says nothing of the connection.
	mayHang bool
	// forwarded: the call goes on to another node, so an error says nothing of this connection.
	forwarded bool
	// timeout instead of the client's.
	timeout time.Duration
	scrub   *Scrubber
}

// call runs fn under a deadline and turns its error into an *Error. A connection that broke is forgotten.
func (c *Client) call(ctx context.Context, o options, fn func(context.Context) error) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return &Error{Kind: Unreachable, Op: o.op, Endpoint: c.endpoint, Text: "the connection was closed"}
	}
	c.inflight++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.inflight--
		c.closeIfIdle()
		c.mu.Unlock()
	}()

	timeout := c.timeout
	if o.timeout > 0 {
		timeout = o.timeout
	}
	cctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := fn(cctx)
	if err == nil {
		return nil
	}
	scrub := o.scrub
	if scrub == nil {
		scrub = c.scrub
	}
	e := classify(o.op, c.endpoint, err, o.write, scrub)
	if !o.forwarded && (e.Kind == Unreachable || e.Kind == WrongCertificate || e.Kind == Timeout && !o.mayHang && ctx.Err() == nil) {
		if c.drop != nil {
			c.drop()
			c.Close()
		}
	}
	return e
}
