// SplitPattern: the regular expression that cuts text into pieces before merging (the `Split` pre-tokenizer, "Isolated").
//
// tokenizer.json holds Oniguruma syntax; PCRE2 runs it. Only what means the same in both is accepted: literals, classes,
// groups (?: (?= (?! (?i:, quantifiers, escapes of punctuation, \r \n \t \d \D and general categories; \s and \S are spelled
// out, because the two disagree about U+180E. Everything else is refused by name.
//
// Thread safety: immutable; split may be called from any number of threads.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/status.h"

namespace otr {

class SplitPattern {
 public:
  // Messages of errors do not name the file: they continue "<file>: <item>: ".
  static Result<SplitPattern> compile(std::string_view oniguruma);

  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  // Appends the matches and what lies between them, in order; together they are the text. Fails where one match takes
  // more steps than a linear expression could need. REQUIRES: well-formed UTF-8.
  Status split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Impl;
  explicit SplitPattern(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace otr
