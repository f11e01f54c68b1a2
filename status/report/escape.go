package report

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// clip cuts a text to a number of runes, with an ellipsis in the place of what was cut.
func clip(s string, runes int) string {
	if utf8.RuneCountInString(s) <= runes {
		return s
	}
	if runes < 1 {
		return ""
	}
	return strings.TrimRight(string([]rune(s)[:runes-1]), " ") + "…"
}

// oneLine joins lines and runs of white space, and makes control characters visible.
func oneLine(s string) string { return visible(strings.Join(strings.Fields(s), " "), false) }

// visible shows what a terminal or a browser would act on or hide (control, format and bidirectional characters) as
// U+FFFD. Newlines stay where they are wanted.
func visible(s string, newlines bool) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' && newlines:
			return r
		case r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), r == '\u2028', r == '\u2029':
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
}

// markdown are the characters that mean something to Markdown, HTML or a forge's own filters. They become entities,
// but for @, which forges look for after entities are resolved: a zero-width space keeps it from naming somebody.
var markdown = strings.NewReplacer(
	"&", "&amp;", "<", "&lt;", ">", "&gt;", "|", "&#124;", "`", "&#96;", "*", "&#42;", "_", "&#95;", "[", "&#91;",
	"]", "&#93;", "\\", "&#92;", "~", "&#126;", "#", "&#35;", "!", "&#33;", "$", "&#36;", "://", "&#58;//",
	"www.", "www&#46;", "@", "@&#8203;",
)

// prose escapes a text for a line of Markdown, in a table too.
func prose(s string, runes int) string { return markdown.Replace(clip(oneLine(s), runes)) }

// code puts a text into a code span that nothing in it can end, for a table cell too. Nothing in a code span is
// looked at by a forge's filters.
func code(s string, runes int) string {
	s = clip(oneLine(s), runes)
	if s == "" {
		return ""
	}
	s = strings.ReplaceAll(s, "|", "\\|")
	fence := strings.Repeat("`", longestRun(s, '`')+1)
	if len(fence) > 1 || strings.HasPrefix(s, " ") || strings.HasSuffix(s, " ") {
		return fence + " " + s + " " + fence
	}
	return fence + s + fence
}

// block puts a text of several lines into a fenced block, indented to belong to a list item.
func block(s, indent string, runes int) string {
	s = clip(visible(strings.TrimRight(strings.ReplaceAll(s, "\r\n", "\n"), "\n"), true), runes)
	fence := strings.Repeat("`", max(3, longestRun(s, '`')+1))
	var b strings.Builder
	b.WriteString(indent + fence + "text\n")
	for line := range strings.SplitSeq(s, "\n") {
		b.WriteString(indent + line + "\n")
	}
	b.WriteString(indent + fence + "\n")
	return b.String()
}

func longestRun(s string, of rune) int {
	longest, run := 0, 0
	for _, r := range s {
		if r == of {
			run++
			longest = max(longest, run)
		} else {
			run = 0
		}
	}
	return longest
}
