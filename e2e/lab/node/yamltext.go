package node

import (
	"errors"
	"fmt"
	"strings"

	yaml "go.yaml.in/yaml/v4"
)

// The YAML library of each Talos version words a syntax error in its own way. The lab's library is
// 1.14's; the others are built from the same parts.

// yamlError114 words it as yaml v4's later releases do (seen on 1.14.0-rc.1): stage, context, range.
func yamlError114(err error) error {
	le := syntaxError(err)
	if le == nil {
		return err
	}
	if le.ContextMsg == "" {
		return fmt.Errorf("decode error: go-yaml load error in %s at %s: %s", le.Stage, le.Mark.ShortString(), le.Message)
	}
	return fmt.Errorf("decode error: go-yaml load error in %s (%s) at %s: %s",
		le.Stage, le.ContextMsg, le.ContextMark.RangeString(le.Mark), le.Message)
}

// yamlError113 words it as yaml v4.0.0-rc.4 does: the context and its place, then the place of
// the error unless it is the same, then the error. That release counts the lines of what its
// parser finds from 0, and the columns of what its composer finds from 2.
func yamlError113(err error) error {
	le := syntaxError(err)
	if le == nil {
		return err
	}
	lines, columns := 0, 0
	switch le.Stage {
	case yaml.ParserStage:
		lines = -1
	case yaml.ComposerStage:
		columns = 1
	}
	var b strings.Builder
	b.WriteString("decode error: yaml: ")
	if le.ContextMsg != "" {
		fmt.Fprintf(&b, "%s at %s: ", le.ContextMsg, place(le.ContextMark.Line+lines, le.ContextMark.Column+columns))
	}
	if le.ContextMsg == "" || le.ContextMark != le.Mark {
		b.WriteString(place(le.Mark.Line+lines, le.Mark.Column+columns) + ": ")
	}
	b.WriteString(le.Message)
	return errors.New(b.String())
}

// yamlError112 words it as yaml v4.0.0-rc.3 does: the error, and its line unless that is the
// first; the lines of what its parser finds count from 0, and its composer names none.
func yamlError112(err error) error {
	le := syntaxError(err)
	if le == nil {
		return err
	}
	line := le.Mark.Line
	if le.Stage == yaml.ParserStage {
		line--
	}
	if le.Mark.Line <= 1 || le.Stage == yaml.ComposerStage {
		return fmt.Errorf("decode error: yaml: %s", le.Message)
	}
	return fmt.Errorf("decode error: yaml: line %d: %s", line, le.Message)
}

// syntaxError is the parser's error inside a "decode error", nil when the configuration is wrong
// in another way.
func syntaxError(err error) *yaml.LoadError {
	var le *yaml.LoadError
	if !strings.HasPrefix(err.Error(), "decode error: ") || !errors.As(err, &le) {
		return nil
	}
	return le
}

func place(line, column int) string {
	if line == 0 {
		return "<unknown position>"
	}
	if column <= 1 { // counted from 1 here, from 0 there, where 0 is not said
		return fmt.Sprintf("line %d", line)
	}
	return fmt.Sprintf("line %d, column %d", line, column)
}
