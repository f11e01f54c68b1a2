package fleet

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	yaml4 "go.yaml.in/yaml/v4"
)

// separator begins a new document; YAML ends every open construct there, block scalars too.
var separator = regexp.MustCompile(`(?m)^---(?:[ \t\r]|$)`)

// salvage reads the documents that do parse of a file that does not. The others define nothing, and what they say of
// themselves is kept, so that nothing follows from their absence.
func (out *parsed) salvage(src source, whole error) {
	line, message := parserError(whole)
	out.problems = append(out.problems, Problem{
		Rule: ruleSchema, Severity: Error, File: src.file, Line: line, Column: parserColumn(src.data, line),
		Message: "the file does not parse as YAML: " + message, Hint: parserHint(message),
	})
	at := &out.problems[len(out.problems)-1]
	chunks := splitDocuments(src.data)
	src.sops = bytes.Contains(src.data, []byte("\n"+sopsKey+":"))
	failed := 0
	for i, c := range chunks {
		s := src
		s.data, s.lineOffset, s.firstDoc = c.data, c.line, i
		nodes, err := decodeNodes(c.data)
		if err != nil {
			u := scan(c.data, src.file)
			out.unknown = append(out.unknown, u.Unknown)
			if failed++; failed == 1 {
				who := u.who()
				at.Cluster, at.Machine, at.Object = who.Cluster, who.Machine, who.Object
				l, m := parserError(err)
				if l == 0 {
					l = badCharacterLine(c.data)
				}
				at.Line, at.Column = l+c.line, parserColumn(c.data, l)
				at.Message, at.Hint = "the file does not parse as YAML: "+m, parserHint(m)
			}
			continue
		}
		for _, n := range nodes {
			s.document(out, n, 0)
		}
	}
	if failed == 0 {
		out.unknown = append(out.unknown, Unknown{File: src.file})
	}
}

// badCharacterLine finds the line of the first character that YAML does not allow, for which the parser gives no line;
// 1 where there is none.
func badCharacterLine(data []byte) int {
	line := 1
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		if r == '\n' {
			line++
		} else if r == utf8.RuneError && n == 1 || r < 0x20 && r != '\t' && r != '\r' || r == 0x7f {
			return line
		}
		data = data[n:]
	}
	return 1
}

// chunk is the text of one document and the number of lines before it.
type chunk struct {
	data []byte
	line int
}

func splitDocuments(data []byte) []chunk {
	var out []chunk
	start, line := 0, 0
	for _, m := range append(separator.FindAllIndex(data, -1), []int{len(data)}) {
		part := data[start:m[0]]
		if len(bytes.TrimSpace(part)) > 0 {
			out = append(out, chunk{part, line})
		}
		line += bytes.Count(part, []byte("\n"))
		start = m[0]
	}
	return out
}

var parserLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// parserError takes the line out of the parser's message. For what the parser (not its scanner) finds it counts from
// zero.
func parserError(err error) (line int, message string) {
	m := parserLine.FindStringSubmatch(strings.SplitN(err.Error(), "\n", 2)[0])
	if m == nil {
		return 0, err.Error()
	}
	line, _ = strconv.Atoi(m[1])
	if line > 0 && strings.HasPrefix(m[2], "did not find expected ") {
		line++
	}
	return line, m[2]
}

var parserPlace = regexp.MustCompile(`\bL(\d+)\.C(\d+)`)

// parserColumn finds the column of a syntax error: the parser that reads manifests gives a line alone, its successor a
// column too. Where the two disagree about the line it is where the line's text begins; 0 where there is no such line.
func parserColumn(data []byte, line int) int {
	var n yaml4.Node
	err := safely(func() error { return yaml4.Unmarshal(data, &n) })
	if err != nil {
		if m := parserPlace.FindStringSubmatch(err.Error()); m != nil && m[1] == strconv.Itoa(line) {
			column, _ := strconv.Atoi(m[2])
			return column
		}
	}
	for i, text := range bytes.Split(data, []byte("\n")) {
		if i+1 == line {
			return len(text) - len(bytes.TrimLeft(text, " \t")) + 1
		}
	}
	return 0
}

// safely turns a panic into an error: the text is not ours.
func safely(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the YAML parser gave up: %v", p)
		}
	}()
	return f()
}

// parserHint says what usually causes a message of the parser.
func parserHint(message string) string {
	switch {
	case strings.Contains(message, "mapping values are not allowed"):
		return "a colon too many, or a line that is indented too far: quote a text that holds a colon and a space"
	case strings.Contains(message, "cannot start any token"):
		return "YAML is indented by blanks, never by tabs; a text that begins with @, ` or % needs quotes"
	case strings.Contains(message, "did not find expected"), strings.Contains(message, "could not find expected"):
		return "look at the indentation, and for brackets or quotes that are not closed, here and just above"
	case strings.Contains(message, "unknown anchor"):
		return "an alias (*name) needs its anchor (&name) before it, in the same document; quote a text that begins with *"
	case strings.Contains(message, "control characters"), strings.Contains(message, "UTF-8"):
		return "save the file as UTF-8 text"
	}
	return "look at the indentation, quotes and brackets of this line and the one above"
}

var scanLine = regexp.MustCompile(`(?m)^([ \t]*)(kind|name|clusterRef|metadata|spec):[ \t]*["']?([A-Za-z0-9.-]*)`)

// scanFlow finds the same in flow style: clusterRef: {name: prod}.
var scanFlow = regexp.MustCompile(`\b(clusterRef|metadata):[ \t]*\{[ \t]*name:[ \t]*["']?([A-Za-z0-9.-]+)`)

// scan reads what a broken document says of itself, line by line.
func scan(data []byte, file string) identity {
	u := identity{Unknown: Unknown{File: file}}
	section, cluster := "", ""
	for _, m := range scanLine.FindAllSubmatch(data, -1) {
		indent, key, value := len(m[1]), string(m[2]), string(m[3])
		switch {
		case key == "kind" && indent == 0:
			u.Kind = value
		case key == "name" && section == "metadata" && u.Name == "":
			u.Name = value
		case key == "name" && section == "clusterRef" && cluster == "":
			cluster = value
		case key != "name" && key != "kind":
			section = key
		}
	}
	for _, m := range scanFlow.FindAllSubmatch(data, -1) {
		if string(m[1]) == "metadata" {
			u.Name = cmp.Or(u.Name, string(m[2]))
		} else {
			cluster = cmp.Or(cluster, string(m[2]))
		}
	}
	u.setCluster(cluster)
	return u
}
