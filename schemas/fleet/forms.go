package fleet

import (
	"encoding/base64"
	"errors"
	"net/netip"
	"regexp"
	"strings"
	"time"
	_ "time/tzdata" // a check must not depend on the machine's zones

	"filippo.io/age"
	"github.com/google/uuid"
	"github.com/robfig/cron/v3"
)

var (
	labelForm     = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	hostLabelForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	versionForm   = regexp.MustCompile(`^v?(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)
	contractForm  = regexp.MustCompile(`^v(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})$`)
	numberForm    = regexp.MustCompile(`^[0-9.]+$`)
	bucketForm    = regexp.MustCompile(`^[^/\s]+$`)
	schematicForm = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
)

// isLabel tells a DNS label (RFC 1123).
func isLabel(s string) bool { return labelForm.MatchString(s) }

// isVersion tells a full semantic version, with or without v.
func isVersion(s string) bool { return versionForm.MatchString(s) }

// isContract tells a minor version with v.
func isContract(s string) bool { return contractForm.MatchString(s) }

// isHostname tells a host name of RFC 1123: labels of letters, digits and hyphens, dots between, at most 253.
func isHostname(s string) bool {
	if len(s) > 253 || numberForm.MatchString(s) {
		return false
	}
	for _, label := range strings.Split(s, ".") {
		if !hostLabelForm.MatchString(label) {
			return false
		}
	}
	return true
}

// isDomain tells a lower-case DNS domain.
func isDomain(s string) bool { return isHostname(s) && s == strings.ToLower(s) }

func isIP(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Zone() == ""
}

// isHost tells an IP address or a host name.
func isHost(s string) bool { return isIP(s) || isHostname(s) }

func isCIDR(s string) bool {
	_, err := netip.ParsePrefix(s)
	return err == nil
}

// isUUID tells a UUID in its usual form of 36 characters.
func isUUID(s string) bool {
	_, err := uuid.Parse(s)
	return err == nil && len(s) == 36
}

// isFingerprint tells base64 of 32 bytes.
func isFingerprint(s string) bool {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	return err == nil && len(b) == 32 && !strings.ContainsAny(s, "\r\n")
}

func isBucket(s string) bool { return bucketForm.MatchString(s) }

func isSchematic(s string) bool { return schematicForm.MatchString(s) }

// isAgeRecipient tells a public key of age: X25519, or the hybrid with a post-quantum part.
func isAgeRecipient(s string) bool {
	if _, err := age.ParseX25519Recipient(s); err == nil {
		return true
	}
	_, err := age.ParseHybridRecipient(s)
	return err == nil
}

// isZone tells an IANA time zone. "Local" is the machine's, which nobody reviewed.
func isZone(s string) bool {
	if s == "" || s == "Local" {
		return false
	}
	_, err := time.LoadLocation(s)
	return err == nil
}

var (
	errCronEvery = errors.New("@every counts from the start of the program, so it has no fixed times")
	errCronNever = errors.New("it never comes")
	errCronZone  = errors.New("its time zone is not known")
)

// parseCron checks a cron expression, with CRON_TZ= or TZ= in front or not; zone tells whether it was.
func parseCron(s string) (zone bool, err error) {
	fields := s
	for _, prefix := range []string{"CRON_TZ=", "TZ="} {
		rest, ok := strings.CutPrefix(s, prefix)
		if !ok {
			continue
		}
		// The library panics where no blank follows the zone.
		name, after, ok := strings.Cut(rest, " ")
		if !ok || !isZone(name) {
			return true, errCronZone
		}
		zone, fields = true, strings.TrimSpace(after)
		break
	}
	if strings.HasPrefix(fields, "@every") {
		return zone, errCronEvery
	}
	schedule, err := cron.ParseStandard(fields)
	if err != nil {
		return zone, err
	}
	// Any start will do: within five years every date comes that ever does.
	if schedule.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return zone, errCronNever
	}
	return zone, nil
}
