package git

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/storage/memory"
)

func deflate(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := zlib.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// A delta of a few bytes can claim a target of gigabytes; the count in the header can claim billions of objects.
func TestScanRefusesClaimsThatAreTooLarge(t *testing.T) {
	lim := packLimits{pack: 1 << 20, object: 1 << 20, total: 4 << 20}
	delta := append(binary.AppendUvarint(nil, 10), binary.AppendUvarint(nil, 8<<30)...)
	body := append([]byte{0x70 | byte(len(delta))}, make([]byte, 20)...) // REF_DELTA, base of zeros
	body = append(body, deflate(t, delta)...)
	pack := func(n uint32, body []byte) []byte {
		b := append([]byte("PACK"), 0, 0, 0, 2)
		return append(append(binary.BigEndian.AppendUint32(b, n), body...), make([]byte, 20)...)
	}
	bomb := pack(1, body)
	if err := scanPack(bytes.NewReader(bomb), int64(len(bomb)), lim); !errors.Is(err, errLimits) {
		t.Errorf("delta bomb: %v", err)
	}
	many := pack(1<<31, body)
	if err := scanPack(bytes.NewReader(many), int64(len(many)), lim); !errors.Is(err, packfile.ErrMalformedPackFile) {
		t.Errorf("claimed objects: %v", err)
	}
	blob := deflate(t, make([]byte, 900<<10))
	head := binary.AppendUvarint([]byte{0xb0}, (900<<10)>>4)
	var five []byte
	for range 5 {
		five = append(append(five, head...), blob...)
	}
	sum := pack(5, five)
	if err := scanPack(bytes.NewReader(sum), int64(len(sum)), lim); !errors.Is(err, errLimits) {
		t.Errorf("sum of objects: %v", err)
	}
}

func TestWhatIsWrittenIsAPack(t *testing.T) {
	from := memory.NewStorage()
	var hashes []plumbing.Hash
	for _, n := range []int{0, 1, 15, 16, 2047, 2048, 100_000} {
		o := from.NewEncodedObject()
		o.SetType(plumbing.BlobObject)
		w, _ := o.Writer()
		_, _ = w.Write(bytes.Repeat([]byte{byte(n)}, n))
		h, err := from.SetEncodedObject(o)
		if err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, h)
	}
	var buf bytes.Buffer
	if err := writePack(&buf, from, hashes); err != nil {
		t.Fatal(err)
	}
	lim := packLimits{pack: 1 << 20, object: 1 << 20, total: 4 << 20}
	if err := scanPack(bytes.NewReader(buf.Bytes()), int64(buf.Len()), lim); err != nil {
		t.Fatal(err)
	}
	to := memory.NewStorage()
	if err := packfile.UpdateObjectStorage(to, &buf); err != nil {
		t.Fatal(err)
	}
	for _, h := range hashes {
		a, _ := from.EncodedObject(plumbing.AnyObject, h)
		b, err := to.EncodedObject(plumbing.AnyObject, h)
		if err != nil || a.Size() != b.Size() {
			t.Fatal(h, err)
		}
	}
}

// FuzzScanPack: no bytes from a server make the scan panic or run on.
func FuzzScanPack(f *testing.F) {
	f.Add([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x01\x30x"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		var err error
		defer guard(&err)
		_ = scanPack(bytes.NewReader(b), int64(len(b)), packLimits{pack: 1 << 20, object: 1 << 16, total: 1 << 20})
	})
}
