package rules

import "strings"

// repeatedUUIDs are system UUIDs that boards are known to repeat, because their maker left the field as it came from
// the firmware's vendor (dmidecode and lshw lists, fwupd's and systemd's exclusions). Two machines may share them.
var repeatedUUIDs = map[string]bool{
	"03000200-0400-0500-0006-000700080009": true, // AMI's default
	"00020003-0004-0005-0006-000700080009": true, // the same, in the other byte order
	"12345678-1234-5678-90ab-cddeefaabbcc": true, // Phoenix's default
	"12345678-1234-5678-90ab-cdef12345678": true,
	"12345678-1234-1234-1234-123456789abc": true,
	"12345678-1234-1234-1234-123456789012": true,
	"12345678-1234-5678-1234-567812345678": true,
	"78563412-3412-7856-90ab-cddeefaabbcc": true, // Phoenix's, in the other byte order
	"00010203-0405-0607-0809-0a0b0c0d0e0f": true,
	"03020100-0504-0706-0809-0a0b0c0d0e0f": true,
	"fefefefe-fefe-fefe-fefe-fefefefefefe": true,
	"4c4c4544-0000-2010-8020-80c04f202020": true, // Dell without a service tag
	"4c4c4544-0020-2010-8020-a0c04f202020": true,
	"88888888-8888-8888-8888-888888888888": true,
	"11111111-2222-3333-4444-555555555555": true,
	"01234567-89ab-cdef-0123-456789abcdef": true,
	"2d2d2d2d-2d2d-2d2d-2d2d-2d2d2d2d2d2d": true, // "-" repeated: the field was never set
	"20202020-2020-2020-2020-202020202020": true, // blanks
}

// canonicalUUID is lower case.
func canonicalUUID(s string) string { return strings.ToLower(strings.TrimSpace(s)) }

// repeatedUUID tells whether a UUID says nothing about the machine: one digit over and over, or a vendor's default.
func repeatedUUID(s string) bool {
	u := canonicalUUID(s)
	digits := strings.ReplaceAll(u, "-", "")
	if digits == "" {
		return true
	}
	if strings.Count(digits, digits[:1]) == len(digits) {
		return true
	}
	return repeatedUUIDs[u]
}
