#include "loader/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>

#include "loader/item_status.h"

namespace otr {
namespace {

constexpr size_t kMaxPatternBytes = 16 << 10;

// Unicode's White_Space, which is what Oniguruma's \s means.
constexpr std::string_view kSpaces =
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

bool is_one_of(char c, std::string_view set) { return set.find(c) != set.npos; }
bool is_ascii_alnum(char c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'); }

// Rewrites one expression from left to right.
class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  Result<std::string> run() {
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      if (c == '\\') OTR_RETURN_IF_ERROR(escape(false));
      else if (c == '[') OTR_RETURN_IF_ERROR(char_class());
      else if (c == '(') OTR_RETURN_IF_ERROR(group());
      else if (c == '^' || c == '$') return refuse(1);  // Ruby's match at every line
      else if (c == '{' && in_.substr(pos_, 2) == "{,")
        return refuse(2);  // digits before the comma are optional in one of the two
      else if (c == '}' && pos_ + 1 < in_.size() && is_one_of(in_[pos_ + 1], "+{")) return refuse(2);  // likewise {n}+, {n}{m}
      else if (c == '}' && in_.substr(pos_, 2) == "}?" && !ends_in_range()) return refuse(2);  // and {n}?: optional, or lazy
      else copy(1);
    }
    return std::move(out_);
  }

 private:
  Status refuse(size_t size) const {
    return unsupported(in_quotes(in_.substr(pos_, size)) + " at byte " + std::to_string(pos_) +
                       " of the expression is not supported");
  }

  // At a '}': whether it closes {n,} or {n,m}.
  bool ends_in_range() const {
    const size_t open = in_.rfind('{', pos_);
    return open != in_.npos && in_.substr(open, pos_ - open).find(',') != in_.npos;
  }

  void copy(size_t size) {
    out_ += in_.substr(pos_, size);
    pos_ += size;
  }

  void replace(size_t size, std::string_view with) {
    out_ += with;
    pos_ += size;
  }

  Status escape(bool in_class) {
    if (pos_ + 1 >= in_.size()) return refuse(1);
    const char c = in_[pos_ + 1];
    if (c == 's') {
      replace(2, in_class ? std::string(kSpaces) : "[" + std::string(kSpaces) + "]");
    } else if (c == 'S' && !in_class) {
      replace(2, "[^" + std::string(kSpaces) + "]");
    } else if (c == 'p' || c == 'P') {
      // A general category: one capital, perhaps one small letter. Other names mean different sets in the two libraries.
      const size_t close = in_.find('}', pos_);
      const std::string_view body = in_.substr(pos_, close == in_.npos ? 2 : close + 1 - pos_);
      const bool is_category = (body.size() == 5 || (body.size() == 6 && is_one_of(body[4], "ulmtocndefgpskqi"))) &&
                               body[2] == '{' && is_one_of(body[3], "LMNPSZC");
      if (!is_category) return refuse(body.size());
      copy(body.size());
    } else if (is_one_of(c, "rntdD") || (static_cast<signed char>(c) > 0x20 && !is_ascii_alnum(c))) {
      copy(2);
    } else {
      return refuse(2);
    }
    return {};
  }

  Status char_class() {
    copy(1);
    if (pos_ < in_.size() && in_[pos_] == '^') copy(1);
    if (pos_ < in_.size() && in_[pos_] == ']') return refuse(1);
    while (pos_ < in_.size() && in_[pos_] != ']') {
      if (in_[pos_] == '[' || in_.substr(pos_, 2) == "&&") return refuse(2);  // Oniguruma's nested sets
      if (in_[pos_] == '\\') OTR_RETURN_IF_ERROR(escape(true));
      else copy(1);
    }
    if (pos_ < in_.size()) copy(1);
    return {};
  }

  Status group() {
    const std::string_view rest = in_.substr(pos_);
    if (rest.starts_with("(?")) {
      for (const std::string_view known : {"(?:", "(?=", "(?!", "(?i:"}) {
        if (rest.starts_with(known)) return copy(known.size()), Status();
      }
      return refuse(4);
    }
    if (rest.starts_with("(*")) return refuse(2);
    copy(1);
    return {};
  }

  std::string_view in_;
  size_t pos_ = 0;
  std::string out_;
};

template <typename T, void (*kFree)(T*)>
struct Freer {
  void operator()(T* p) const { kFree(p); }
};
using Code = std::unique_ptr<pcre2_code, Freer<pcre2_code, pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freer<pcre2_compile_context, pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context, pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data, pcre2_match_data_free>>;

std::string error_text(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct SplitPattern::Impl {
  Code code;
};

SplitPattern::SplitPattern(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

Result<SplitPattern> SplitPattern::compile(std::string_view oniguruma) {
  if (oniguruma.size() > kMaxPatternBytes) return bad_input("an expression of " + std::to_string(oniguruma.size()) + " bytes");
  OTR_ASSIGN_OR_RETURN(const std::string pattern, Translator(oniguruma).run());
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (context) pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get()));
  if (!code) return bad_input("not a regular expression: " + error_text(error));
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty) return unsupported("an expression that can match the empty text is not supported");
  // Without the just-in-time compiler (not built in, or executable memory refused) PCRE2 interprets: slower, same result.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  auto impl = std::make_unique<Impl>();
  impl->code = std::move(code);
  return SplitPattern(std::move(impl));
}

Status SplitPattern::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const MatchContext context(pcre2_match_context_create(nullptr));
  const MatchData match(pcre2_match_data_create_from_pattern(impl_->code.get(), nullptr));
  if (!context || !match) return {StatusCode::kOutOfMemory, "no memory to match the split expression"};
  // A linear expression backtracks over each character a few times at most; an exponential one stops here.
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(std::min<size_t>(10'000 + 16 * text.size(), UINT32_MAX)));
  pcre2_set_heap_limit(context.get(), 256 << 10);  // KiB
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t pos = 0;
  while (pos < text.size()) {
    const auto run = [&](uint32_t options) {
      return pcre2_match(impl_->code.get(), subject, text.size(), pos, PCRE2_NO_UTF_CHECK | options, match.get(),
                         context.get());
    };
    int rc = run(0);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = run(PCRE2_NO_JIT);  // compiled code has 32 KiB; the interpreter has the heap
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) return bad_input("the split expression failed at byte " + std::to_string(pos) + ": " + error_text(rc));
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
    if (bounds[0] > pos) pieces.push_back(text.substr(pos, bounds[0] - pos));
    pieces.push_back(text.substr(bounds[0], bounds[1] - bounds[0]));
    pos = bounds[1];
  }
  if (pos < text.size()) pieces.push_back(text.substr(pos));
  return {};
}

}  // namespace otr
