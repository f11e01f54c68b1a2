package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/pflag"
)

// Key is one leaf of the configuration with its three names.
type Key struct {
	// Path in the file: forge.url.
	Path string
	// Flags, the canonical one first: forge-url, and aliases.
	Flags []string
	// Env variables in the same order: ICHOR_FORGE_URL.
	Env     []string
	Usage   string
	Default string
	index   []int
}

// Keys lists every key in the order of the file.
func Keys() []Key {
	def := Default()
	return walk(reflect.ValueOf(def), nil, nil)
}

func walk(v reflect.Value, path []string, index []int) []Key {
	var keys []Key
	for i := range v.NumField() {
		field := v.Type().Field(i)
		at := append(append([]int(nil), index...), i)
		name := append(append([]string(nil), path...), field.Tag.Get("yaml"))
		if field.Type.Kind() == reflect.Struct {
			keys = append(keys, walk(v.Field(i), name, at)...)
			continue
		}
		key := Key{
			Path:    strings.Join(name, "."),
			Flags:   []string{dashed(name)},
			Usage:   field.Tag.Get("usage"),
			Default: text(v.Field(i)),
			index:   at,
		}
		if alias := field.Tag.Get("alias"); alias != "" {
			key.Flags = append(key.Flags, strings.Split(alias, ",")...)
		}
		for _, f := range key.Flags {
			key.Env = append(key.Env, "ICHOR_"+strings.ToUpper(strings.ReplaceAll(f, "-", "_")))
		}
		keys = append(keys, key)
	}
	return keys
}

// dashed spells a path as a flag: forge.tokenFile is forge-token-file, installationID installation-id.
func dashed(path []string) string {
	var words []string
	for _, step := range path {
		var word []rune
		runes := []rune(step)
		for i, r := range runes {
			if unicode.IsUpper(r) && i > 0 && (unicode.IsLower(runes[i-1]) ||
				(i+1 < len(runes) && unicode.IsLower(runes[i+1]))) {
				word = append(word, '-')
			}
			word = append(word, unicode.ToLower(r))
		}
		words = append(words, string(word))
	}
	return strings.Join(words, "-")
}

func text(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case []string:
		return strings.Join(x, ",")
	case time.Duration:
		if x == 0 {
			return ""
		}
		return x.String()
	case int:
		return nonZero(int64(x))
	case int64:
		return nonZero(x)
	case bool:
		return strconv.FormatBool(x)
	case string:
		return x
	default:
		panic(fmt.Sprintf("configuration key of type %T has no text form", x))
	}
}

func nonZero(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// set parses s into the key's field of c.
func (k Key) set(c *Config, s string) error {
	v := reflect.ValueOf(c).Elem().FieldByIndex(k.index)
	switch v.Interface().(type) {
	case string:
		v.SetString(s)
	case []string:
		var list []string
		for part := range strings.SplitSeq(s, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		v.Set(reflect.ValueOf(list))
	case time.Duration:
		d, err := time.ParseDuration(s)
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 30s or 2m", s)
		}
		v.SetInt(int64(d))
	case int, int64:
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", s)
		}
		v.SetInt(n)
	case bool:
		b, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", s)
		}
		v.SetBool(b)
	}
	return nil
}

// AddFlags puts a flag for every key, its aliases, and --config on a command. Values are read by Load.
func AddFlags(flags *pflag.FlagSet) {
	flags.String("config", "", "configuration file (YAML); also $ICHOR_CONFIG")
	def := Default()
	for _, k := range Keys() {
		kind := reflect.ValueOf(def).FieldByIndex(k.index).Kind()
		usage := k.Usage + " (key " + k.Path + ", $" + k.Env[len(k.Env)-1] + ")"
		for i, name := range k.Flags {
			// The last name is the short one that people type; the others are accepted and hidden.
			if kind == reflect.Bool {
				flags.Bool(name, k.Default == "true", usage)
			} else {
				flags.String(name, k.Default, usage)
			}
			if i < len(k.Flags)-1 {
				_ = flags.MarkHidden(name) // the flag was just defined, so this can't fail
			}
		}
	}
}
