package journal

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/ichor/schemas/state"
)

// Kinds of a bad inventory.
var (
	errBroken  = errors.New("does not parse")
	errMAC     = errors.New("fails its MAC")
	errVersion = errors.New("has a newer format version")
	errOther   = errors.New("belongs to another repository")
)

// ErrNoKeys: without an age identity an inventory can be neither sealed nor trusted.
var ErrNoKeys = errors.New("seal the inventory: no key; give Ichor an age identity (SOPS_AGE_KEY or SOPS_AGE_KEY_FILE)")

const header = "# Written by Ichor: what it did last. Do not edit: a changed file fails its MAC, and destructive acts hold.\n"

// seal gives the file with a MAC under the first key.
func seal(inv *state.Inventory, keys [][]byte) ([]byte, error) {
	if len(keys) == 0 {
		return nil, ErrNoKeys
	}
	mac, err := macOf(inv, keys[0])
	if err != nil {
		return nil, err
	}
	sealed := *inv
	sealed.MAC = mac
	data, err := yaml.Marshal(&sealed)
	if err != nil {
		return nil, fmt.Errorf("encode the inventory: %w", err)
	}
	return append([]byte(header), data...), nil
}

// open checks the version, then the MAC with any of the keys, then the repository.
func open(data []byte, keys [][]byte, repository string) (*state.Inventory, error) {
	var v struct {
		Version int `json:"version"`
	}
	if err := yaml.Unmarshal(data, &v); err != nil || v.Version < 1 {
		return nil, errBroken
	}
	if v.Version > state.InventoryVersion {
		return nil, errVersion
	}
	inv := &state.Inventory{}
	if err := yaml.UnmarshalStrict(data, inv); err != nil {
		return nil, errBroken
	}
	for _, k := range keys {
		mac, err := macOf(inv, k)
		if err != nil {
			return nil, errBroken
		}
		if hmac.Equal([]byte(mac), []byte(inv.MAC)) {
			if repository != "" && inv.RepositoryID != "" && repository != inv.RepositoryID {
				return nil, errOther
			}
			return inv, nil
		}
	}
	return nil, errMAC
}

// macOf is HMAC-SHA256 over the JSON form without the MAC, which Go writes with sorted keys.
func macOf(inv *state.Inventory, key []byte) (string, error) {
	plain := *inv
	plain.MAC = ""
	data, err := json.Marshal(&plain)
	if err != nil {
		return "", fmt.Errorf("encode the inventory: %w", err)
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte("ichor inventory v1\x00"))
	h.Write(data)
	return base64.StdEncoding.EncodeToString(h.Sum(nil)), nil
}

// clone is a deep copy.
func clone(inv *state.Inventory) *state.Inventory {
	if inv == nil {
		return nil
	}
	data, err := json.Marshal(inv)
	if err != nil {
		panic("encode a plain value: " + err.Error())
	}
	out := &state.Inventory{}
	if err := json.Unmarshal(data, out); err != nil {
		panic("decode a plain value: " + err.Error())
	}
	return out
}
