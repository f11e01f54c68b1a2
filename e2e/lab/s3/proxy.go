package s3

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"time"
)

// maxSkew is how far a request's time may be from the store's: S3's 15 minutes.
const maxSkew = 15 * time.Minute

// errFault breaks a transfer on purpose.
var errFault = errors.New("the lab broke the transfer")

// quiet takes what net/http says of broken connections: they are the faults' work.
var quiet = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)

type passKey struct{}

// pass is what the answer has to know of its request.
type pass struct {
	op   string
	rate int64
}

// handler passes requests on to the server, through the faults. Nothing of a request is changed
// that its signature covers.
func (s *Store) handler() http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", s.server.addr.String()
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			r.Out.Host = r.In.Host
		},
		Transport: &http.Transport{
			DisableCompression: true, MaxIdleConnsPerHost: 32, ExpectContinueTimeout: time.Second,
			DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		},
		FlushInterval:  -1,
		ModifyResponse: s.answer,
		ErrorLog:       quiet,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op := operation(r)
		s.mu.Lock()
		s.counts[op]++
		s.mu.Unlock()
		p := pass{op: op}
		if !s.before(w, r, &p) {
			return
		}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), passKey{}, p)))
	})
}

// before does what faults do to a request; false when it was answered.
func (s *Store) before(w http.ResponseWriter, r *http.Request, p *pass) bool {
	op := p.op
	if _, ok := s.hit("hang", op); ok {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // whatever comes, no answer does
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
	if f, ok := s.hit("slow", op); ok {
		select {
		case <-time.After(f.Delay):
		case <-r.Context().Done():
		}
		if p.rate = f.Rate; f.Rate > 0 {
			r.Body = throttled(r.Context(), r.Body, f.Rate)
		}
	}
	if f, ok := s.hit("fail", op); ok {
		refuse(w, f.Status, map[int][2]string{
			503: {"SlowDown", "Please reduce your request rate."},
			500: {"InternalError", "We encountered an internal error. Please try again."},
			403: {"AccessDenied", "Access Denied"},
		}[f.Status], "")
		return false
	}
	if offset, wrong := s.clock(); wrong {
		sent, ok := requestTime(r)
		if here := time.Now().Add(offset); ok && here.Sub(sent).Abs() > maxSkew {
			w.Header().Set("Date", here.UTC().Format(http.TimeFormat))
			refuse(w, http.StatusForbidden, [2]string{"RequestTimeTooSkewed", "The difference between the request time and the current time is too large."},
				fmt.Sprintf("<RequestTime>%s</RequestTime><ServerTime>%s</ServerTime><MaxAllowedSkewMilliseconds>%d</MaxAllowedSkewMilliseconds>",
					sent.UTC().Format("20060102T150405Z"), here.UTC().Format(time.RFC3339), maxSkew.Milliseconds()))
			return false
		}
	}
	if r.ContentLength > 0 && (op == "PutObject" || op == "UploadPart") {
		if _, ok := s.hit("half", op); ok {
			r.Body = &broken{ReadCloser: r.Body, left: r.ContentLength / 2}
		}
		if _, ok := s.hit("corrupt", op, "GetObject"); ok {
			r.Body = &flipped{ReadCloser: r.Body, at: r.ContentLength / 2}
		}
	}
	return true
}

// answer does what faults do to an answer.
func (s *Store) answer(resp *http.Response) error {
	p, _ := resp.Request.Context().Value(passKey{}).(pass)
	op := p.op
	ok := resp.StatusCode < 300
	if offset, wrong := s.clock(); wrong {
		resp.Header.Set("Date", time.Now().Add(offset).UTC().Format(http.TimeFormat))
		if ok && (op == "PutObject" || op == "CompleteMultipartUpload" || op == "CopyObject") {
			s.backdate(resp, offset)
		}
	}
	if ok && op != "GetObject" && op != "HeadObject" {
		if _, lost := s.hit("lost-reply", op); lost {
			io.Copy(io.Discard, resp.Body) //nolint:errcheck // the work is done when the answer is
			resp.Body.Close()
			return errFault
		}
	}
	if ok && op == "GetObject" && resp.ContentLength > 0 {
		if _, half := s.hit("half", op); half {
			resp.Body = &broken{ReadCloser: resp.Body, left: resp.ContentLength / 2}
		}
		if _, bad := s.hit("corrupt", op, "GetObject"); bad {
			resp.Body = &flipped{ReadCloser: resp.Body, at: resp.ContentLength / 2}
		}
	}
	if p.rate > 0 {
		resp.Body = throttled(resp.Request.Context(), resp.Body, p.rate)
	}
	return nil
}

// backdate gives a new object the time that the store's wrong clock shows. The body is read first:
// the work is done when the whole answer is there.
func (s *Store) backdate(resp *http.Response, offset time.Duration) {
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	if err != nil {
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(resp.Request.URL.Path, "/"), "/")
	at := time.Now().Add(offset)
	if err := os.Chtimes(s.ObjectFile(bucket, key), at, at); err != nil {
		s.opts.Log.Warn("cannot set the time of an object", "bucket", bucket, "key", key, "error", err)
	}
}

func (s *Store) clock() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if f.Kind == "clock" {
			return f.Offset, true
		}
	}
	return 0, false
}

// requestTime is when a request says it was signed.
func requestTime(r *http.Request) (time.Time, bool) {
	for _, text := range []string{r.Header.Get("X-Amz-Date"), r.URL.Query().Get("X-Amz-Date")} {
		if t, err := time.Parse("20060102T150405Z", text); err == nil {
			return t, true
		}
	}
	t, err := http.ParseTime(r.Header.Get("Date"))
	return t, err == nil
}

// refuse answers as S3 words its errors.
func refuse(w http.ResponseWriter, status int, what [2]string, more string) {
	if what[0] == "" {
		what = [2]string{"InternalError", http.StatusText(status)}
	}
	var message bytes.Buffer
	_ = xml.EscapeText(&message, []byte(what[1])) // a buffer takes everything
	body := fmt.Sprintf("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>%s</Message>%s<RequestId>lab</RequestId></Error>", what[0], message.String(), more)
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("Connection", "close") // the body that comes is not read
	w.WriteHeader(status)
	io.WriteString(w, body) //nolint:errcheck // the client may be gone
}

// broken ends with an error after some bytes.
type broken struct {
	io.ReadCloser
	left int64
}

func (b *broken) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errFault
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// flipped has one wrong bit.
type flipped struct {
	io.ReadCloser
	at int64
}

func (f *flipped) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if f.at >= 0 && f.at < int64(n) {
		p[f.at] ^= 1
	}
	f.at -= int64(n)
	return n, err
}

// slowBody lets bytes through at a rate.
type slowBody struct {
	io.ReadCloser
	ctx  context.Context
	rate int64
}

func throttled(ctx context.Context, body io.ReadCloser, rate int64) io.ReadCloser {
	return &slowBody{ReadCloser: body, ctx: ctx, rate: rate}
}

func (b *slowBody) Read(p []byte) (int, error) {
	// a tenth of a second's worth at a time
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), max(b.rate/10, 1))])
	select {
	case <-time.After(time.Duration(n) * time.Second / time.Duration(b.rate)):
	case <-b.ctx.Done():
		return n, b.ctx.Err()
	}
	return n, err
}
