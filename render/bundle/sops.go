package bundle

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/getsops/sops/v3"
	"github.com/getsops/sops/v3/aes"
	sopsage "github.com/getsops/sops/v3/age"
	"github.com/getsops/sops/v3/config"
	"github.com/getsops/sops/v3/keyservice"
	"github.com/getsops/sops/v3/logging"
	sopsyaml "github.com/getsops/sops/v3/stores/yaml"
	"github.com/getsops/sops/v3/version"
	"github.com/sirupsen/logrus"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"

	"ichor.maesh.dev/ichor/render/mask"
	"ichor.maesh.dev/ichor/schemas/fleet"
	"ichor.maesh.dev/ichor/schemas/secret"
)

// Kinds of failure that callers tell apart.
var (
	// ErrNotEncrypted: the file has no SOPS metadata, so whatever it holds lies there in plain text.
	ErrNotEncrypted = errors.New("not SOPS-encrypted")
	// ErrKeyService: the file is encrypted to something else than age. Nothing is ever asked of a cloud.
	ErrKeyService = errors.New("only age is supported")
	// ErrMalformed: the file is no well-formed SOPS file, or not of the expected shape.
	ErrMalformed = errors.New("malformed")
	// ErrNoIdentity: none of Ichor's identities opens the file.
	ErrNoIdentity = errors.New("no identity opens it")
	// ErrTampered: the file's MAC does not match, or a value does not decrypt.
	ErrTampered = errors.New("the MAC does not match: the file was changed after it was encrypted")
)

func init() {
	// SOPS logs comments that it takes for unencrypted, which may hold what somebody commented out.
	logging.SetLevel(logrus.PanicLevel)
	for _, l := range logging.Loggers {
		l.SetOutput(io.Discard)
	}
}

// Info says what can be seen of a SOPS file without a key.
type Info struct {
	// Recipients are the age public keys that it is encrypted to, sorted.
	Recipients []string
	// Encrypted and Plain are the paths of the leaves with encrypted and with readable, non-empty values, sorted;
	// those of the second and later YAML documents begin with "#1:" and so on.
	Encrypted, Plain []string
}

// Shape reads a SOPS file's form without decrypting. Errors are of the kinds ErrNotEncrypted, ErrKeyService and
// ErrMalformed. The file may come from a stranger: aliases are refused, so that nothing is expanded.
func Shape(ciphertext []byte) (Info, error) {
	docs, err := documents(ciphertext)
	if err != nil {
		return Info{}, err
	}
	var info Info
	for i, doc := range docs {
		meta := mapValue(doc, "sops")
		if meta == nil || meta.Kind != yaml.MappingNode {
			return Info{}, ErrNotEncrypted
		}
		if i == 0 {
			if info.Recipients, err = recipients(meta); err != nil {
				return Info{}, err
			}
		}
		prefix := ""
		if i > 0 {
			prefix = "#" + strconv.Itoa(i) + ":"
		}
		WalkLeaves(doc, "", func(path string, leaf *yaml.Node) {
			if strings.HasPrefix(path, "sops.") {
				return
			}
			switch {
			case IsEncrypted(leaf.Value):
				info.Encrypted = append(info.Encrypted, prefix+path)
			case leaf.Value != "" && leaf.ShortTag() != "!!null":
				info.Plain = append(info.Plain, prefix+path)
			}
		})
	}
	sort.Strings(info.Encrypted)
	sort.Strings(info.Plain)
	return info, nil
}

// recipients checks that the metadata is whole and knows age alone, and gives its recipients.
func recipients(meta *yaml.Node) ([]string, error) {
	if m := mapValue(meta, "mac"); m == nil || !IsEncrypted(m.Value) {
		return nil, fmt.Errorf("%w: the sops metadata has no mac", ErrMalformed)
	}
	if m := mapValue(meta, "lastmodified"); m == nil {
		return nil, fmt.Errorf("%w: the sops metadata has no lastmodified", ErrMalformed)
	}
	var out []string
	groups := []*yaml.Node{meta}
	if g := mapValue(meta, "key_groups"); g != nil {
		groups = append(groups, g.Content...)
	}
	for _, group := range groups {
		got, err := groupRecipients(group)
		if err != nil {
			return nil, err
		}
		out = append(out, got...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: the sops metadata names no age recipient", ErrMalformed)
	}
	sort.Strings(out)
	return out, nil
}

// groupRecipients reads one key group. Any list of mappings that carry "enc" is a key service's, known or not.
func groupRecipients(group *yaml.Node) ([]string, error) {
	if group.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%w: a key group of the sops metadata is no mapping", ErrMalformed)
	}
	var out []string
	for i := 0; i+1 < len(group.Content); i += 2 {
		name, list := group.Content[i].Value, group.Content[i+1]
		if list.Kind != yaml.SequenceNode || name == "key_groups" {
			continue
		}
		for _, item := range list.Content {
			if name != "age" {
				return nil, fmt.Errorf("%w: the file is encrypted to %s", ErrKeyService, name)
			}
			r, enc := mapValue(item, "recipient"), mapValue(item, "enc")
			if r == nil || enc == nil || r.Value == "" || enc.Value == "" {
				return nil, fmt.Errorf("%w: an age entry of the sops metadata lacks recipient or enc", ErrMalformed)
			}
			out = append(out, r.Value)
		}
	}
	return out, nil
}

// documents parses a YAML stream and refuses what SOPS never writes: aliases, and documents that are no mapping.
func documents(data []byte) ([]*yaml.Node, error) {
	var docs []*yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		if err := dec.Decode(&doc); err != nil {
			if errors.Is(err, io.EOF) {
				break
			}
			return nil, fmt.Errorf("%w: not YAML", ErrMalformed)
		}
		if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
			return nil, fmt.Errorf("%w: a document is no mapping", ErrMalformed)
		}
		if hasAlias(&doc) {
			return nil, fmt.Errorf("%w: YAML aliases are not allowed in an encrypted file", ErrMalformed)
		}
		docs = append(docs, doc.Content[0])
	}
	if len(docs) == 0 {
		return nil, fmt.Errorf("%w: the file is empty", ErrMalformed)
	}
	return docs, nil
}

func hasAlias(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		return true
	}
	for _, c := range n.Content {
		if hasAlias(c) {
			return true
		}
	}
	return false
}

// mapValue gives the value of a key of a mapping, nil where it is not there.
func mapValue(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// WalkLeaves calls f for every scalar under n with its field path below path. Aliases are not followed.
func WalkLeaves(n *yaml.Node, path string, f func(path string, leaf *yaml.Node)) {
	switch n.Kind {
	case yaml.DocumentNode:
		for _, c := range n.Content {
			WalkLeaves(c, path, f)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			WalkLeaves(n.Content[i+1], mask.Key(path, n.Content[i].Value), f)
		}
	case yaml.SequenceNode:
		for i, c := range n.Content {
			WalkLeaves(c, mask.Index(path, i), f)
		}
	case yaml.ScalarNode:
		f(path, n)
	}
}

// IsEncrypted tells whether a scalar is a value that SOPS encrypted.
func IsEncrypted(value string) bool {
	return strings.HasPrefix(value, "ENC[AES256_GCM,data:") && strings.HasSuffix(value, "]")
}

// EncryptedType gives the type of an encrypted value, str, int, float, bool or bytes; "" where it says none.
func EncryptedType(value string) string {
	i := strings.LastIndex(value, ",type:")
	if i < 0 {
		return ""
	}
	return strings.TrimSuffix(value[i+len(",type:"):], "]")
}

// ageService is a key service that opens age alone, with the given identities: no environment, no command, no
// network.
type ageService struct{ ids []sopsage.ParsedIdentities }

func (s ageService) Decrypt(_ context.Context, req *keyservice.DecryptRequest, _ ...grpc.CallOption) (*keyservice.DecryptResponse, error) {
	k := req.GetKey().GetAgeKey()
	if k == nil {
		return nil, ErrKeyService
	}
	for _, ids := range s.ids {
		mk := sopsage.MasterKey{Recipient: k.Recipient, EncryptedKey: string(req.Ciphertext)}
		ids.ApplyToMasterKey(&mk)
		if plain, err := mk.Decrypt(); err == nil {
			return &keyservice.DecryptResponse{Plaintext: plain}, nil
		}
	}
	return nil, ErrNoIdentity
}

func (s ageService) Encrypt(context.Context, *keyservice.EncryptRequest, ...grpc.CallOption) (*keyservice.EncryptResponse, error) {
	return nil, ErrKeyService
}

// decrypt opens a SOPS YAML file with its MAC checked.
func decrypt(ciphertext []byte, keys Keys) (sops.Tree, error) {
	if _, err := Shape(ciphertext); err != nil {
		return sops.Tree{}, err
	}
	if keys.Empty() {
		return sops.Tree{}, ErrNoKeys
	}
	tree, err := sopsyaml.NewStore(&config.YAMLStoreConfig{}).LoadEncryptedFile(ciphertext)
	if err != nil {
		return sops.Tree{}, fmt.Errorf("%w: not a SOPS file", ErrMalformed)
	}
	svc := ageService{ids: []sopsage.ParsedIdentities{keys.ring.ids}}
	dataKey, err := tree.Metadata.GetDataKeyWithKeyServices([]keyservice.KeyServiceClient{svc}, nil)
	if err != nil {
		return sops.Tree{}, ErrNoIdentity
	}
	cipher := aes.NewCipher()
	mac, err := tree.Decrypt(dataKey, cipher)
	if err != nil {
		return sops.Tree{}, ErrTampered
	}
	want, err := cipher.Decrypt(tree.Metadata.MessageAuthenticationCode, dataKey,
		tree.Metadata.LastModified.Format(time.RFC3339))
	if err != nil || want != mac {
		return sops.Tree{}, ErrTampered
	}
	return tree, nil
}

// Open implements Values: it checks the file's MAC and gives the decrypted leaves of each YAML document, by path.
// Only leaves that are encrypted in the file are in it.
func (k Keys) Open(f *fleet.File) ([]map[string]secret.Bytes, error) {
	docs, err := documents(f.Data)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", f.Path, err)
	}
	tree, err := decrypt(f.Data, k)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", f.Path, err)
	}
	sealed, err := sopsyaml.NewStore(&config.YAMLStoreConfig{}).LoadEncryptedFile(f.Data)
	if err != nil || len(docs) != len(tree.Branches) || len(docs) != len(sealed.Branches) {
		return nil, fmt.Errorf("open %s: %w: documents don't match", f.Path, ErrMalformed)
	}
	out := make([]map[string]secret.Bytes, len(docs))
	for i, doc := range docs {
		want := 0
		WalkLeaves(doc, "", func(path string, leaf *yaml.Node) {
			if IsEncrypted(leaf.Value) && EncryptedType(leaf.Value) != "comment" && !strings.HasPrefix(path, "sops.") {
				want++
			}
		})
		out[i] = map[string]secret.Bytes{}
		collect(sealed.Branches[i], tree.Branches[i], "", out[i])
		if len(out[i]) != want {
			return nil, fmt.Errorf("open %s: %w: a value was not decrypted", f.Path, ErrMalformed)
		}
	}
	return out, nil
}

// collect walks a tree before and after decryption. YAML comments lie in it like values and are no list elements;
// but SOPS writes an encrypted comment of a list as an element of its own, which counts until it is decrypted. Paths
// are those of the file as it lies there.
func collect(sealed, plain any, path string, out map[string]secret.Bytes) {
	switch s := sealed.(type) {
	case sops.TreeBranch:
		p, ok := plain.(sops.TreeBranch)
		for i, item := range s {
			if _, comment := item.Key.(sops.Comment); !comment && ok && i < len(p) {
				collect(item.Value, p[i].Value, mask.Key(path, fmt.Sprint(item.Key)), out)
			}
		}
	case []any:
		p, ok := plain.([]any)
		n := 0
		for i, x := range s {
			if _, comment := x.(sops.Comment); comment || !ok || i >= len(p) {
				continue
			}
			collect(x, p[i], mask.Index(path, n), out)
			n++
		}
	case string:
		if _, comment := plain.(sops.Comment); !comment && IsEncrypted(s) {
			out[path] = secret.New(leafBytes(plain))
		}
	}
}

// leafBytes writes a decrypted value as YAML has it.
func leafBytes(v any) []byte {
	switch v := v.(type) {
	case string:
		return []byte(v)
	case []byte:
		return bytes.Clone(v)
	case bool:
		return strconv.AppendBool(nil, v)
	case int:
		return strconv.AppendInt(nil, int64(v), 10)
	case float64:
		return strconv.AppendFloat(nil, v, 'g', -1, 64)
	case time.Time:
		return []byte(v.Format(time.RFC3339Nano))
	default:
		return nil
	}
}

// Encrypt encrypts a YAML file to age recipients as the sops command does. With encryptedRegex "" every value is
// encrypted, else those under keys that match. path is for messages only.
func Encrypt(plain []byte, path string, recipients []string, encryptedRegex string) ([]byte, error) {
	if len(recipients) == 0 {
		return nil, fmt.Errorf("encrypt %s: no recipients", path)
	}
	store := sopsyaml.NewStore(&config.YAMLStoreConfig{Indent: 2})
	branches, err := store.LoadPlainFile(plain)
	if err != nil || len(branches) == 0 {
		return nil, fmt.Errorf("encrypt %s: not a YAML mapping", path)
	}
	for _, b := range branches {
		if store.HasSopsTopLevelKey(b) {
			return nil, fmt.Errorf("encrypt %s: it is encrypted already", path)
		}
	}
	var group sops.KeyGroup
	for _, r := range recipients {
		mk, err := sopsage.MasterKeyFromRecipient(r)
		if err != nil {
			return nil, fmt.Errorf("encrypt %s: recipient %s: %w", path, r, err)
		}
		group = append(group, mk)
	}
	tree := sops.Tree{Branches: branches, Metadata: sops.Metadata{
		KeyGroups: []sops.KeyGroup{group}, Version: version.Version, EncryptedRegex: encryptedRegex,
	}}
	if encryptedRegex == "" {
		tree.Metadata.UnencryptedSuffix = sops.DefaultUnencryptedSuffix
	}
	return seal(tree, store, path)
}

// seal makes a data key, encrypts it to each recipient and the tree to it, and writes the file.
func seal(tree sops.Tree, store *sopsyaml.Store, path string) ([]byte, error) {
	dataKey, err := newDataKey()
	if err != nil {
		return nil, fmt.Errorf("encrypt %s: %w", path, err)
	}
	for _, mk := range tree.Metadata.KeyGroups[0] {
		if err := mk.Encrypt(dataKey); err != nil {
			return nil, fmt.Errorf("encrypt %s: %w", path, err)
		}
	}
	cipher := aes.NewCipher()
	mac, err := tree.Encrypt(dataKey, cipher)
	if err != nil {
		return nil, fmt.Errorf("encrypt %s: a value is of a type that SOPS can't encrypt", path)
	}
	tree.Metadata.LastModified = time.Now().UTC()
	tree.Metadata.MessageAuthenticationCode, err = cipher.Encrypt(mac, dataKey, tree.Metadata.LastModified.Format(time.RFC3339))
	if err != nil {
		return nil, fmt.Errorf("encrypt %s: %w", path, err)
	}
	out, err := store.EmitEncryptedFile(tree)
	if err != nil {
		return nil, fmt.Errorf("encrypt %s: %w", path, err)
	}
	return out, nil
}

// encode64 is the base64 form that Talos writes PEM in.
func encode64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
