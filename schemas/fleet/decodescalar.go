package fleet

import (
	"fmt"
	"reflect"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// scalar decodes a string, a boolean or a number, and checks it against the bounds in f.
func (d *docDecoder) scalar(n *yaml.Node, v reflect.Value, at int32, f *fieldInfo) {
	want := "a string"
	switch v.Kind() {
	case reflect.Bool:
		want = "a boolean"
	case reflect.Int:
		want = "a whole number"
	}
	if n.Kind != yaml.ScalarNode {
		d.wrongType(n, at, want)
		return
	}
	if isEncrypted(n) {
		d.encrypted(at)
		return
	}
	x, ok := readScalar(n)
	if !ok {
		d.fail(at, fmt.Sprintf("wrong type: %s is wanted, this has the tag %s", want, n.Tag), "")
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		b, ok := x.(bool)
		if !ok {
			d.wrongType(n, at, want)
			return
		}
		v.SetBool(b)
	case reflect.Int:
		i, ok := wholeNumber(x)
		if !ok {
			d.wrongType(n, at, want)
			return
		}
		v.SetInt(int64(i))
		d.checkInt(i, at, f)
	default:
		s, ok := scalarText(x)
		if !ok {
			d.wrongType(n, at, want)
			return
		}
		v.SetString(s)
		if _, is := x.(float64); is {
			d.coerced = append(d.coerced, at)
		}
		if f != nil && f.required && s == "" {
			d.fail(at, "the value is empty", "")
			return
		}
		d.checkEnum(s, at, f)
	}
}

func (d *docDecoder) checkEnum(s string, at int32, f *fieldInfo) {
	if f == nil || len(f.enum) == 0 {
		return
	}
	for _, e := range f.enum {
		if e == s {
			return
		}
	}
	d.fail(at, "unknown value "+quoted(s), suggest(s, f.enum))
}

func (d *docDecoder) checkInt(i int, at int32, f *fieldInfo) {
	if f == nil {
		return
	}
	if f.hasBounds && (i < f.min || i > f.max) {
		d.fail(at, fmt.Sprintf("%d is not within %d to %d", i, f.min, f.max), "")
	}
	d.checkEnum(strconv.Itoa(i), at, f)
}
