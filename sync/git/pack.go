package git

import (
	"compress/zlib"
	"crypto/sha1" //nolint:gosec // the pack format's checksum
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/storer"
)

// packLimits bound what a pack may unfold to.
type packLimits struct {
	pack, object, total int64
	// count of objects: the parser keeps some memory for each. 0 is no limit.
	count int
}

// scanPack reads a pack once, without keeping anything, and refuses it before go-git inflates it into memory when an
// object or the sum of all is too large: 200 KB can hold 200 MiB, and anybody may open a pull request (facts 3.1).
func scanPack(src io.ReadSeeker, size int64, lim packLimits) error {
	if _, err := src.Seek(0, io.SeekStart); err != nil {
		return err
	}
	s := packfile.NewScanner(src)
	_, count, err := s.Header()
	if err != nil {
		return err
	}
	// The parser allocates by this number. No object takes less than 9 bytes in a pack.
	if int64(count)*9 > size {
		return fmt.Errorf("%w: pack of %d bytes claims %d objects", packfile.ErrMalformedPackFile, size, count)
	}
	if lim.count > 0 && int64(count) > int64(lim.count) {
		return fmt.Errorf("%w: it brings %d objects, more than %d", errLimits, count, lim.count)
	}
	var total int64
	for range count {
		h, err := s.NextObjectHeader()
		if err != nil {
			return err
		}
		full := h.Length
		if full <= lim.object {
			head := &prefix{}
			if _, _, err := s.NextObject(head); err != nil {
				return err
			}
			if h.Type == plumbing.OFSDeltaObject || h.Type == plumbing.REFDeltaObject {
				if full, err = deltaTarget(head.b); err != nil {
					return err
				}
			}
		}
		if total += full; full > lim.object || full < 0 {
			return fmt.Errorf("%w: an object has %d bytes, more than %d", errLimits, full, lim.object)
		}
		if total > lim.total {
			return fmt.Errorf("%w: the pack unfolds to more than %d bytes", errLimits, lim.total)
		}
	}
	return nil
}

// prefix keeps the first bytes that are written to it.
type prefix struct{ b []byte }

func (p *prefix) Write(q []byte) (int, error) {
	if room := 24 - len(p.b); room > 0 {
		p.b = append(p.b, q[:min(room, len(q))]...)
	}
	return len(q), nil
}

// deltaTarget reads the size of what a delta makes (gitformat-pack(5): two sizes, base and target).
func deltaTarget(b []byte) (int64, error) {
	_, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, packfile.ErrInvalidDelta
	}
	to, m := binary.Uvarint(b[n:])
	if m <= 0 || int64(to) < 0 {
		return 0, packfile.ErrInvalidDelta
	}
	return int64(to), nil
}

// writePack writes the objects as a pack without deltas, one object in memory at a time.
func writePack(w io.Writer, from storer.EncodedObjectStorer, hashes []plumbing.Hash) error {
	sum := sha1.New() //nolint:gosec // see above
	out := io.MultiWriter(w, sum)
	header := make([]byte, 0, 12)
	header = append(header, "PACK"...)
	header = binary.BigEndian.AppendUint32(header, 2)
	header = binary.BigEndian.AppendUint32(header, uint32(len(hashes)))
	if _, err := out.Write(header); err != nil {
		return err
	}
	for _, h := range hashes {
		o, err := from.EncodedObject(plumbing.AnyObject, h)
		if err != nil {
			return err
		}
		if err := writePackObject(out, o); err != nil {
			return err
		}
	}
	_, err := w.Write(sum.Sum(nil))
	return err
}

func writePackObject(w io.Writer, o plumbing.EncodedObject) (err error) {
	size := o.Size()
	b := []byte{byte(o.Type())<<4 | byte(size&0x0f)}
	for size >>= 4; size > 0; size >>= 7 {
		b[len(b)-1] |= 0x80
		b = append(b, byte(size&0x7f))
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	r, err := o.Reader()
	if err != nil {
		return err
	}
	z := zlib.NewWriter(w)
	if _, err = io.Copy(z, r); err == nil {
		err = z.Close()
	}
	return errors.Join(err, r.Close())
}
