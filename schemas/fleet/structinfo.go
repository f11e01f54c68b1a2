package fleet

import (
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// structInfo is what the decoder needs to know of a Go type of the kinds: the JSON names of its fields and the
// bounds in their jsonschema tags, which the JSON Schemas are generated from too.
type structInfo struct {
	fields []fieldInfo
	byName map[string]int
	names  []string
}

// fieldInfo is one field. Enum holds the allowed texts; Min and Max bound a number where HasBounds.
type fieldInfo struct {
	name      string
	index     int
	required  bool
	enum      []string
	min, max  int
	hasBounds bool
}

var structInfos sync.Map // reflect.Type → *structInfo

// infoOf gives a struct type's info; each type is looked at once.
func infoOf(t reflect.Type) *structInfo {
	if got, ok := structInfos.Load(t); ok {
		return got.(*structInfo)
	}
	info := &structInfo{byName: map[string]int{}}
	for i := range t.NumField() {
		f := fieldInfoOf(t.Field(i), i)
		info.byName[f.name] = len(info.fields)
		info.fields = append(info.fields, f)
		info.names = append(info.names, f.name)
	}
	got, _ := structInfos.LoadOrStore(t, info)
	return got.(*structInfo)
}

// fieldInfoOf reads the tags of one field.
func fieldInfoOf(sf reflect.StructField, index int) fieldInfo {
	name, options, _ := strings.Cut(sf.Tag.Get("json"), ",")
	f := fieldInfo{name: name, index: index, required: !strings.Contains(options, "omit")}
	for _, part := range strings.Split(sf.Tag.Get("jsonschema"), ",") {
		key, value, _ := strings.Cut(part, "=")
		switch key {
		case "enum":
			f.enum = append(f.enum, value)
		case "minimum":
			f.min, _ = strconv.Atoi(value)
			f.hasBounds = true
		case "maximum":
			f.max, _ = strconv.Atoi(value)
			f.hasBounds = true
		}
	}
	return f
}
