# Checks the language of Rust files: see "Language" in CONTRIBUTING.md. Prints each finding as file:line: text, and fails if there is one.
#
#   git ls-files '*.rs' | xargs awk -f lint/plain-english.awk

BEGIN {
  words = "what whatever who whoever whom whose whether none of those nobody"
  split(words, list, " ")
  for (i in list) anywhere[list[i]] = 1
  # A doc comment is a noun phrase or begins with a verb; a comment in code may begin with a clause.
  words = "it they that which where how why them nothing"
  split(words, list, " ")
  for (i in list) in_docs[list[i]] = 1
}

FNR == 1 { before = "" }

# A block of comments begins.
match($0, /^[ \t]*\/\/[\/!]?/) {
  mark = substr($0, RSTART, RLENGTH)
  text = substr($0, RLENGTH + 1)
  gsub(/[ \t]/, "", mark)
  if (mark != before) {
    first = tolower(text)
    sub(/^[^a-z0-9]*/, "", first)
    sub(/[^a-z'].*/, "", first)
    if (first in anywhere || (mark != "//" && first in in_docs))
      report("a comment begins with \"" first "\": name the thing, or begin with a verb")
  }
  if (text ~ /FAULTS [0-9]|[^a-z](issue|row) [0-9]/) report("a number of an internal list: say what it means")
  before = mark
  next
}

{ before = "" }

match($0, /fn [a-z0-9_]+/) {
  name = substr($0, RSTART + 3, RLENGTH - 3)
  first = name
  sub(/_.*/, "", first)
  # A name of four words or more is a sentence: a test.
  if (split(name, parts, "_") >= 4 && (first in anywhere)) report("a test begins with \"" first "\": name its subject")
}

function report(why) {
  print FILENAME ":" FNR ": " why
  failed = 1
}

END { exit failed }
