package s3

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // S3's ETag
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
)

// open starts a store, or skips where its server is not built: that takes minutes, and is not every
// run's to pay.
func open(t *testing.T, dir string) *Store {
	t.Helper()
	server, err := Find()
	if errors.Is(err, ErrNoServer) {
		t.Skip("the S3 server is not built: run hack/tools.sh versitygw (some minutes, once)")
	}
	must(t, err)
	s, err := Start(t.Context(), Options{Dir: dir, Server: server})
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// client that tries once and gives up soon, so that a fault is seen and not waited out.
func client(t *testing.T, s *Store) *minio.Client {
	t.Helper()
	minio.MaxRetry = 1
	c, err := s.Client()
	must(t, err)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, c *minio.Client, key string, data []byte) (minio.UploadInfo, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	return c.PutObject(ctx, DefaultBucket, key, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{})
}

func get(t *testing.T, c *minio.Client, bucket, key, version string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	o, err := c.GetObject(ctx, bucket, key, minio.GetObjectOptions{VersionID: version})
	if err != nil {
		return nil, err
	}
	defer o.Close()
	return io.ReadAll(o)
}

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b) //nolint:errcheck // never fails
	return b
}

func code(err error) string { return minio.ToErrorResponse(err).Code }

// TestStoreIsReal: versions, locks, conditions and keys are the server's own, and all survives a restart.
func TestStoreIsReal(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	c := client(t, s)
	ctx := t.Context()

	must(t, c.MakeBucket(ctx, "locked", minio.MakeBucketOptions{Region: Region, ObjectLocking: true}))
	first, err := c.PutObject(ctx, "locked", "a/b", strings.NewReader("one"), 3, minio.PutObjectOptions{
		Mode: minio.Compliance, RetainUntilDate: time.Now().Add(time.Hour), SendContentMd5: true,
	})
	must(t, err)
	second, err := c.PutObject(ctx, "locked", "a/b", strings.NewReader("two"), 3, minio.PutObjectOptions{SendContentMd5: true})
	must(t, err)
	if first.VersionID == "" || first.VersionID == second.VersionID {
		t.Errorf("versions %q and %q", first.VersionID, second.VersionID)
	}
	if b, err := get(t, c, "locked", "a/b", first.VersionID); err != nil || string(b) != "one" {
		t.Errorf("the old version is %q, %v", b, err)
	}
	if b, err := get(t, c, "locked", "a/b", ""); err != nil || string(b) != "two" {
		t.Errorf("the newest version is %q, %v", b, err)
	}
	if err := c.RemoveObject(ctx, "locked", "a/b", minio.RemoveObjectOptions{VersionID: first.VersionID}); code(err) != "AccessDenied" {
		t.Errorf("a version under retention was removed: %v", err)
	}
	must(t, c.RemoveObject(ctx, "locked", "a/b", minio.RemoveObjectOptions{VersionID: second.VersionID}))

	once := minio.PutObjectOptions{}
	once.SetMatchETagExcept("*")
	_, err = c.PutObject(ctx, s.Bucket(), "marker", strings.NewReader("mine"), 4, once)
	must(t, err)
	if _, err = c.PutObject(ctx, s.Bucket(), "marker", strings.NewReader("other"), 5, once); code(err) != "PreconditionFailed" {
		t.Errorf("a second conditional put: %v", err)
	}
	if b, err := get(t, c, s.Bucket(), "marker", ""); err != nil || string(b) != "mine" {
		t.Errorf("the marker is %q, %v", b, err)
	}

	sc := client(t, &Store{keep: kept{AccessKey: s.keep.AccessKey, SecretKey: "wrong", Addr: s.keep.Addr}})
	if _, err := sc.ListBuckets(ctx); err == nil {
		t.Error("a wrong key was let in")
	}

	// multipart, and a restart at the same address
	big := noise(12 << 20)
	_, err = c.PutObject(ctx, s.Bucket(), "big", bytes.NewReader(big), -1, minio.PutObjectOptions{PartSize: 5 << 20})
	must(t, err)
	if s.Requests()["UploadPart"] != 3 || s.Requests()["CompleteMultipartUpload"] != 1 {
		t.Errorf("requests: %v", s.Requests())
	}
	endpoint := s.Endpoint()
	must(t, s.Close())
	s = open(t, dir)
	if s.Endpoint() != endpoint {
		t.Errorf("the store moved from %s to %s", endpoint, s.Endpoint())
	}
	if b, err := get(t, client(t, s), s.Bucket(), "big", ""); err != nil || !bytes.Equal(b, big) {
		t.Errorf("after a restart the object has %d bytes, %v", len(b), err)
	}
}

// TestFaults: each fault, with what happens without it before and after.
func TestFaults(t *testing.T) {
	s := open(t, t.TempDir())
	c := client(t, s)
	data := noise(1 << 20)
	ok := func(t *testing.T, when string) {
		t.Helper()
		start := time.Now()
		_, err := put(t, c, "control", data)
		for range 3 { // connections that the fault broke are found out one by one
			if err != nil {
				_, err = put(t, c, "control", data)
			}
		}
		if err != nil {
			t.Fatalf("%s: put: %v", when, err)
		}
		if b, err := get(t, c, s.Bucket(), "control", ""); err != nil || !bytes.Equal(b, data) {
			t.Fatalf("%s: get: %v", when, err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("%s: it took %s", when, took)
		}
		if d := skew(t, s); d.Abs() > time.Minute {
			t.Errorf("%s: the clock is %s off", when, d)
		}
	}
	for _, x := range []struct {
		fault Fault
		check func(t *testing.T)
	}{
		{Fault{Kind: "cut"}, func(t *testing.T) {
			if _, err := net.DialTimeout("tcp", s.Host(), 300*time.Millisecond); !timedOut(err) {
				t.Errorf("a dial: %v, want a timeout", err)
			}
		}},
		{Fault{Kind: "refuse"}, func(t *testing.T) {
			if _, err := net.DialTimeout("tcp", s.Host(), 300*time.Millisecond); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a dial: %v, want it refused", err)
			}
		}},
		{Fault{Kind: "hang", On: "PutObject"}, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if _, err := c.PutObject(ctx, s.Bucket(), "k", strings.NewReader("x"), 1, minio.PutObjectOptions{}); ctx.Err() == nil {
				t.Errorf("a put ended before its deadline: %v", err)
			}
			if _, err := get(t, c, s.Bucket(), "control", ""); err != nil {
				t.Errorf("a get: %v", err)
			}
		}},
		{Fault{Kind: "slow", Delay: 400 * time.Millisecond}, func(t *testing.T) {
			start := time.Now()
			if _, err := put(t, c, "k", []byte("x")); err != nil || time.Since(start) < 400*time.Millisecond {
				t.Errorf("a put took %s, %v", time.Since(start), err)
			}
		}},
		{Fault{Kind: "slow", Rate: 2 << 20}, func(t *testing.T) {
			start := time.Now()
			if _, err := put(t, c, "k", data); err != nil || time.Since(start) < 400*time.Millisecond {
				t.Errorf("1 MiB at 2 MiB/s took %s, %v", time.Since(start), err)
			}
		}},
		{Fault{Kind: "half", On: "PutObject", Count: 1}, func(t *testing.T) {
			if _, err := put(t, c, "half", data); err == nil {
				t.Error("half an upload is one")
			}
			if _, err := c.StatObject(t.Context(), s.Bucket(), "half", minio.StatObjectOptions{}); code(err) != "NoSuchKey" {
				t.Errorf("half an upload is stored: %v", err)
			}
			if _, err := put(t, c, "half", data); err != nil {
				t.Errorf("the upload after it: %v", err)
			}
		}},
		{Fault{Kind: "half", On: "UploadPart"}, func(t *testing.T) {
			_, err := c.PutObject(t.Context(), s.Bucket(), "parts", bytes.NewReader(noise(6<<20)), -1, minio.PutObjectOptions{PartSize: 5 << 20})
			if err == nil {
				t.Error("an upload of half parts succeeded")
			}
			if _, err := c.StatObject(t.Context(), s.Bucket(), "parts", minio.StatObjectOptions{}); code(err) != "NoSuchKey" {
				t.Errorf("it is stored: %v", err)
			}
		}},
		{Fault{Kind: "half", On: "GetObject"}, func(t *testing.T) {
			if b, err := get(t, c, s.Bucket(), "control", ""); err == nil || len(b) >= len(data) {
				t.Errorf("a get gave %d bytes, %v", len(b), err)
			}
		}},
		{Fault{Kind: "lost-reply", On: "PutObject"}, func(t *testing.T) {
			if _, err := put(t, c, "lost", data); err == nil {
				t.Error("the reply came")
			}
			if b, err := get(t, c, s.Bucket(), "lost", ""); err != nil || !bytes.Equal(b, data) {
				t.Errorf("the put did not take effect: %v", err)
			}
		}},
		{Fault{Kind: "corrupt"}, func(t *testing.T) {
			if b, err := get(t, c, s.Bucket(), "control", ""); err != nil || len(b) != len(data) || bytes.Equal(b, data) {
				t.Errorf("a download is intact or too short: %d bytes, %v", len(b), err)
			}
		}},
		{Fault{Kind: "corrupt", On: "PutObject"}, func(t *testing.T) {
			// a client that sends a hash is told
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if _, err := c.PutObject(ctx, s.Bucket(), "bad", bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{SendContentMd5: true}); err == nil {
				t.Error("a corrupt upload was taken")
			}
		}},
		{Fault{Kind: "fail", Count: 1}, func(t *testing.T) {
			if _, err := put(t, c, "k", data[:10]); code(err) != "SlowDown" {
				t.Errorf("a put: %v", err)
			}
			if _, err := put(t, c, "k", data[:10]); err != nil {
				t.Errorf("the put after it: %v", err)
			}
		}},
		{Fault{Kind: "clock", Offset: 20 * time.Minute}, func(t *testing.T) {
			if _, err := put(t, c, "k", data[:10]); code(err) != "RequestTimeTooSkewed" {
				t.Errorf("a put: %v", err)
			}
			if d := skew(t, s); d < 19*time.Minute || d > 21*time.Minute {
				t.Errorf("the clock is %s off", d)
			}
		}},
		{Fault{Kind: "clock", Offset: -10 * time.Minute}, func(t *testing.T) {
			if _, err := put(t, c, "old", data[:10]); err != nil {
				t.Errorf("a put: %v", err)
			}
			info, err := c.StatObject(t.Context(), s.Bucket(), "old", minio.StatObjectOptions{})
			if d := time.Since(info.LastModified); err != nil || d < 9*time.Minute {
				t.Errorf("the object is %s old, %v", d, err)
			}
		}},
	} {
		f := x.fault
		t.Run(strings.TrimSuffix(f.Kind+"-"+f.On, "-"), func(t *testing.T) {
			ok(t, "before")
			must(t, s.Fault(f))
			x.check(t)
			s.Heal()
			if len(s.Faults()) > 0 {
				t.Errorf("after heal there are %v", s.Faults())
			}
			ok(t, "after")
		})
	}
}

// TestRot: a bit that flips on the store's disk is served as if it were right.
func TestRot(t *testing.T) {
	s := open(t, t.TempDir())
	c := client(t, s)
	data := noise(4096)
	info, err := put(t, c, "dir/snapshot", data)
	must(t, err)
	if b, err := get(t, c, s.Bucket(), "dir/snapshot", ""); err != nil || !bytes.Equal(b, data) {
		t.Fatalf("before: %v", err)
	}
	must(t, s.Rot(s.Bucket(), "dir/snapshot"))
	b, err := get(t, c, s.Bucket(), "dir/snapshot", "")
	must(t, err)
	if bytes.Equal(b, data) {
		t.Error("the object is intact")
	}
	sum := md5.Sum(b) //nolint:gosec // as above
	after, err := c.StatObject(t.Context(), s.Bucket(), "dir/snapshot", minio.StatObjectOptions{})
	if err != nil || after.ETag != info.ETag || after.ETag == hex.EncodeToString(sum[:]) {
		t.Errorf("the store noticed: %+v %v", after, err)
	}
	for _, key := range []string{"none", "../../store.json", "dir"} {
		if s.Rot(s.Bucket(), key) == nil {
			t.Errorf("%q was corrupted", key)
		}
	}
}

func TestBadFaults(t *testing.T) {
	for _, f := range []Fault{
		{Kind: "odd"},
		{Kind: "cut", On: "PutObject"},
		{Kind: "half", On: "ListObjects"},
		{Kind: "fail", Status: 200},
		{Kind: "clock"},
		{Kind: "lost-reply", On: "Nothing"},
		{Kind: "half", Count: -1},
		{Kind: "slow", Delay: -1},
	} {
		if err := f.check(); err == nil {
			t.Errorf("%+v was taken", f)
		}
	}
}

// TestNoServer: what is missing is said, and a wrong setting is no missing server.
func TestNoServer(t *testing.T) {
	t.Setenv(EnvServer, "")
	t.Setenv("PATH", "/nowhere")
	t.Setenv("ICHOR_TOOLS_DIR", t.TempDir())
	if _, err := Find(); !errors.Is(err, ErrNoServer) {
		t.Errorf("found: %v", err)
	}
	t.Setenv(EnvServer, "/nowhere/versitygw")
	if _, err := Find(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a wrong $%s: %v", EnvServer, err)
	}
}

func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// skew is how far the store's clock is ahead.
func skew(t *testing.T, s *Store) time.Duration {
	t.Helper()
	resp, err := http.Get(s.Endpoint() + "/")
	must(t, err)
	resp.Body.Close()
	at, err := http.ParseTime(resp.Header.Get("Date"))
	must(t, err)
	return time.Until(at)
}
