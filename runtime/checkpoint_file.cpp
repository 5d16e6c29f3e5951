#include "runtime/checkpoint_file.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "loader/file.h"
#include "loader/frame_sum.h"
#include "loader/xxh64.h"
#include "runtime/file_fields.h"

namespace otr {
namespace {

constexpr char kCheckpointMagic[] = "OTRCHECK";
constexpr uint64_t kCheckpointFormat = 3;
constexpr uint64_t kMaxCheckpointBytes = uint64_t{1} << 36;

struct CheckpointHeader {
  char magic[8];
  uint64_t format;
  char isa[16];
  char library[16];
  uint64_t weights_digest, weight_version;
  uint64_t user_bytes, num_groups;
  uint64_t body_bytes, body_sum;
  uint64_t hash;
};
static_assert(sizeof(CheckpointHeader) == 104);

uint64_t hash_of(const CheckpointHeader& h) { return xxh64(&h, sizeof h - sizeof h.hash); }

// What of a group is plain numbers.
struct GroupRecord {
  uint64_t tag, seed, num_prompt, num_scored, num_stop_ids, num_samples;
  float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  int32_t top_k, max_new_tokens;
  int32_t ignore_eos, is_score, wants_logprobs, cancelled;
  uint64_t is_later_turn;
};
static_assert(sizeof(GroupRecord) == 104);

// Likewise of a sample.
struct SampleRecord {
  NoiseStream noise;
  SampleSpec spec;
  uint32_t sample;
  uint32_t num_accepted, num_logprobs;
  int32_t is_finished, finish_reason;
  uint32_t error_bytes;
  uint64_t num_weight_spans;
};
static_assert(sizeof(SampleRecord) == 80);
static_assert(sizeof(otr_weight_span) == 16);

// ---- Writing -------------------------------------------------------------------------------------------------------------

template <typename T>
void append(std::vector<std::byte>* bytes, std::span<const T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t at = bytes->size();
  bytes->resize(at + values.size_bytes());
  if (!values.empty()) std::memcpy(bytes->data() + at, values.data(), values.size_bytes());
}

void append_sample(std::vector<std::byte>* bytes, const LedgerSample& s) {
  const SampleRecord record{.noise = s.noise,
                            .spec = s.spec,
                            .sample = s.sample,
                            .num_accepted = static_cast<uint32_t>(s.tokens.size()),
                            .num_logprobs = static_cast<uint32_t>(s.raw_logprobs.size()),
                            .is_finished = s.is_finished,
                            .finish_reason = static_cast<int32_t>(s.finish_reason),
                            .error_bytes = static_cast<uint32_t>(s.error.size()),
                            .num_weight_spans = s.weight_spans.size()};
  append(bytes, std::span(&record, 1));
  append(bytes, std::span(s.tokens));
  // A score that failed has no raw log-probs, and then its log-probs are nobody's.
  append(bytes, std::span(s.logprobs).first(record.num_logprobs));
  append(bytes, std::span(s.raw_logprobs));
  append(bytes, std::span(s.error));
  append(bytes, std::span(s.weight_spans));
}

void append_group(std::vector<std::byte>* bytes, const LedgerGroup& g) {
  const SamplingParams& p = g.group->sampling;
  const size_t num_prompt = static_cast<size_t>(g.group->num_prompt);
  const GroupRecord record{.tag = g.group->tag,
                           .seed = p.seed,
                           .num_prompt = num_prompt,
                           .num_scored = g.prompt.size() - num_prompt,
                           .num_stop_ids = p.stop_token_ids.size(),
                           .num_samples = static_cast<uint64_t>(g.num_open),
                           .temperature = p.temperature,
                           .top_p = p.top_p,
                           .min_p = p.min_p,
                           .repetition_penalty = p.repetition_penalty,
                           .presence_penalty = p.presence_penalty,
                           .frequency_penalty = p.frequency_penalty,
                           .top_k = p.top_k,
                           .max_new_tokens = p.max_new_tokens,
                           .ignore_eos = p.ignore_eos,
                           .is_score = g.group->is_score,
                           .wants_logprobs = g.group->wants_logprobs,
                           .cancelled = g.group->cancelled,
                           .is_later_turn = g.group->is_later_turn};
  append(bytes, std::span(&record, 1));
  append(bytes, std::span(g.prompt));
  append(bytes, std::span(p.stop_token_ids));
  for (const LedgerSample& s : g.samples) {
    if (!s.is_closed) append_sample(bytes, s);
  }
}

// ---- Reading -------------------------------------------------------------------------------------------------------------

struct GroupParts {
  GroupRecord record = {};
  std::vector<int32_t> tokens, stop_ids;  // prompt and what is scored
};

otr_sampling_params sampling_of(const GroupParts& g) {
  const GroupRecord& r = g.record;
  return {.struct_size = sizeof(otr_sampling_params),
          .temperature = r.temperature,
          .top_k = r.top_k,
          .top_p = r.top_p,
          .min_p = r.min_p,
          .repetition_penalty = r.repetition_penalty,
          .presence_penalty = r.presence_penalty,
          .frequency_penalty = r.frequency_penalty,
          .seed = r.seed,
          .max_new_tokens = r.max_new_tokens,
          .ignore_eos = r.ignore_eos,
          .stop_token_ids = g.stop_ids.data(),
          .num_stop_token_ids = g.stop_ids.size()};
}

// The requests' own checks are what the file is checked with.
Result<std::vector<std::unique_ptr<Sequence>>> make_sequences(const GroupParts& g, const RequestLimits& limits) {
  const otr_sampling_params sampling = sampling_of(g);
  const size_t num_prompt = g.record.num_prompt;
  if (g.record.is_score == 0) {
    return make_group({.struct_size = sizeof(otr_group_request),
                       .prompt_token_ids = g.tokens.data(),
                       .num_prompt_tokens = num_prompt,
                       .n = static_cast<int32_t>(g.record.num_samples),
                       .first_sample = 0,
                       .stream = 0,
                       .tag = g.record.tag,
                       .sampling = &sampling},
                      limits);
  }
  OTR_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> score,
                       make_score({.struct_size = sizeof(otr_score_request),
                                   .prompt_token_ids = g.tokens.data(),
                                   .num_prompt_tokens = num_prompt,
                                   .token_ids = g.tokens.data() + num_prompt,
                                   .num_tokens = g.tokens.size() - num_prompt,
                                   .tag = g.record.tag,
                                   .sampling = g.record.wants_logprobs != 0 ? &sampling : nullptr},
                                  limits));
  std::vector<std::unique_ptr<Sequence>> one;
  one.push_back(std::move(score));
  return one;
}

// What a sample has accepted, onto a fresh sequence. "" or what cannot be.
std::string apply(const SampleRecord& r, std::span<const int32_t> tokens, std::span<const float> logprobs,
                  std::span<const float> raw_logprobs, int32_t vocab_size, Sequence* s) {
  const bool is_score = s->group->is_score, is_finished = r.is_finished == 1;
  const size_t most = static_cast<size_t>(s->max_tokens - s->num_prompt());
  if (tokens.size() > most || raw_logprobs.size() > most || (!is_score && raw_logprobs.size() != tokens.size()))
    return "has more tokens than it may, or other log-probs";
  if (std::any_of(tokens.begin(), tokens.end(), [vocab_size](int32_t t) { return t < 0 || t >= vocab_size; }))
    return "has a token outside the vocabulary";
  if (is_finished && (r.finish_reason < OTR_FINISH_STOP || r.finish_reason > OTR_FINISH_SCORE ||
                      (r.finish_reason == OTR_FINISH_SCORE) != is_score)) {
    if (!is_score || (r.finish_reason != OTR_FINISH_ERROR && r.finish_reason != OTR_FINISH_ABORT))
      return "ends in no known way";
  }
  if (is_score && !is_finished) return "";  // it begins anew
  if (is_score) {
    s->logprobs.clear();
    s->raw_logprobs.clear();
  }
  for (const int32_t token : tokens) {
    s->tokens.push_back(token);
    s->note_penalty(token, true);
  }
  s->logprobs.insert(s->logprobs.end(), logprobs.begin(), logprobs.end());
  s->raw_logprobs.insert(s->raw_logprobs.end(), raw_logprobs.begin(), raw_logprobs.end());
  s->num_reported = static_cast<int32_t>(s->raw_logprobs.size());
  return "";
}

// Likewise of the weights that drew it.
std::string apply_spans(const SampleRecord& r, std::span<const otr_weight_span> spans, uint64_t version, Sequence* s) {
  const auto is_wrong = [](const otr_weight_span& a, const otr_weight_span& b) { return a.first_token >= b.first_token; };
  if (spans.empty() || spans.front().first_token != 0 || spans.back().first_token > r.num_accepted ||
      std::adjacent_find(spans.begin(), spans.end(), is_wrong) != spans.end())
    return "has spans of weights that cannot be";
  if (r.is_finished != 1 && spans.back().weight_version != version) return "is unfinished, and of other weights";
  s->weight_spans.assign(spans.begin(), spans.end());
  return "";
}

}  // namespace

LedgerCopy copy_ledger(const Ledger& ledger, std::span<const std::byte> user) {
  LedgerCopy copy{.bytes = std::vector<std::byte>(sizeof(CheckpointHeader)),
                  .user_bytes = user.size(),
                  .num_groups = ledger.groups().size()};
  append(&copy.bytes, user);
  for (const auto& [id, group] : ledger.groups()) append_group(&copy.bytes, group);
  return copy;
}

std::vector<std::byte> encode_checkpoint(const CheckpointIdentity& identity, LedgerCopy copy) {
  const std::span<const std::byte> body = std::span<const std::byte>(copy.bytes).subspan(sizeof(CheckpointHeader));
  CheckpointHeader h{};
  std::memcpy(h.magic, kCheckpointMagic, sizeof h.magic);
  h.format = kCheckpointFormat;
  put_text(identity.isa, h.isa);
  put_text(identity.library, h.library);
  h.weights_digest = identity.weights_digest;
  h.weight_version = identity.weight_version;
  h.user_bytes = copy.user_bytes;
  h.num_groups = copy.num_groups;
  h.body_bytes = body.size();
  h.body_sum = frame_sum(body.data(), body.size());
  h.hash = hash_of(h);
  std::memcpy(copy.bytes.data(), &h, sizeof h);
  return std::move(copy.bytes);
}

Status write_checkpoint(const std::string& path, std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxCheckpointBytes) {
    return io_error(path + ": a checkpoint of " + std::to_string(bytes.size()) + " bytes is larger than one may be, " +
                    std::to_string(kMaxCheckpointBytes));
  }
  ReplacedFile file(path);
  OTR_RETURN_IF_ERROR(file.created());
  OTR_RETURN_IF_ERROR(file.write(bytes.data(), bytes.size()));
  return file.rename();
}

Result<CheckpointFile> CheckpointFile::read(const std::string& path) {
  OTR_ASSIGN_OR_RETURN(const File file, File::open(path));
  if (file.size() > kMaxCheckpointBytes) return bad_input(path + ": larger than a checkpoint may be");
  std::vector<std::byte> bytes(file.size());
  OTR_RETURN_IF_ERROR(file.read_exact(0, bytes));
  return parse(path, std::move(bytes));
}

Result<CheckpointFile> CheckpointFile::parse(const std::string& name, std::vector<std::byte> bytes) {
  CheckpointHeader h;
  if (bytes.size() < sizeof h) return bad_input(name + ": torn: " + std::to_string(bytes.size()) + " bytes hold no header");
  std::memcpy(&h, bytes.data(), sizeof h);
  if (std::memcmp(h.magic, kCheckpointMagic, sizeof h.magic) != 0) return invalid_argument(name + ": not a checkpoint");
  if (h.hash != hash_of(h)) return bad_input(name + ": damaged: the header's checksum is wrong");
  if (h.format != kCheckpointFormat) {
    return unsupported(name + ": format " + std::to_string(h.format) + "; this library reads format " +
                       std::to_string(kCheckpointFormat));
  }
  CheckpointFile f;
  f.name_ = name;
  f.bytes_ = std::move(bytes);
  const std::span<const std::byte> body = std::span<const std::byte>(f.bytes_).subspan(sizeof h);
  if (h.body_bytes != body.size()) {
    return bad_input(name + ": torn: " + std::to_string(body.size()) + " of " + std::to_string(h.body_bytes) +
                     " bytes are there");
  }
  if (h.user_bytes > body.size() || frame_sum(body.data(), body.size()) != h.body_sum)
    return bad_input(name + ": damaged: its checksum is wrong");
  f.identity_ = {.isa = text_of(h.isa),
                 .library = text_of(h.library),
                 .weights_digest = h.weights_digest,
                 .weight_version = h.weight_version};
  f.user_ = body.first(h.user_bytes);
  f.groups_ = body.subspan(h.user_bytes);
  f.num_groups_ = h.num_groups;
  return f;
}

Result<std::vector<std::vector<CheckpointFile::Sample>>> CheckpointFile::restore(const CheckpointIdentity& ours,
                                                                                 const RequestLimits& limits) const {
  const auto other = [this](const std::string& what, const std::string& theirs, const std::string& here) {
    return unsupported(name_ + ": of another " + what + ": " + theirs + "; the engine's is " + here);
  };
  if (identity_.isa != ours.isa) return other("instruction-set path", identity_.isa, ours.isa);
  if (identity_.library != ours.library) return other("library version", identity_.library, ours.library);
  if (identity_.weights_digest != ours.weights_digest)
    return other("model: its weights' digest", hex(identity_.weights_digest), hex(ours.weights_digest));
  FieldReader in(groups_);
  std::vector<std::vector<Sample>> groups;
  for (uint64_t i = 0; in.ok() && i < num_groups_; ++i) {
    GroupParts g;
    g.record = in.take<GroupRecord>();
    const std::string where = name_ + ": group " + std::to_string(i) + ": ";
    const uint64_t most = static_cast<uint64_t>(limits.context_limit);
    if (g.record.num_prompt > most || g.record.num_scored > most || g.record.num_samples < 1 ||
        g.record.num_samples > (1 << 20) || (g.record.is_score == 0 ? g.record.num_scored != 0 : g.record.num_samples != 1)) {
      return bad_input(where + "its lengths cannot be");
    }
    g.tokens = in.take<int32_t>(g.record.num_prompt + g.record.num_scored);
    g.stop_ids = in.take<int32_t>(g.record.num_stop_ids);
    if (!in.ok() || g.record.num_samples > groups_.size() / sizeof(SampleRecord)) break;
    Result<std::vector<std::unique_ptr<Sequence>>> made = make_sequences(g, limits);
    if (!made.ok()) {
      const bool is_large = made.status().code() == StatusCode::kNeverFits;
      return Status(is_large ? StatusCode::kNeverFits : StatusCode::kBadInput, where + made.status().message());
    }
    made.value().front()->group->cancelled = g.record.cancelled == 1;
    made.value().front()->group->is_later_turn = g.record.is_later_turn == 1;
    std::vector<Sample> samples;
    for (std::unique_ptr<Sequence>& s : made.value()) {
      const SampleRecord r = in.take<SampleRecord>();
      const std::vector<int32_t> tokens = in.take<int32_t>(r.num_accepted);
      const std::vector<float> logprobs = in.take<float>(r.num_logprobs), raw_logprobs = in.take<float>(r.num_logprobs);
      const std::vector<char> error = in.take<char>(r.error_bytes);
      const std::vector<otr_weight_span> spans = in.take<otr_weight_span>(r.num_weight_spans);
      if (!in.ok()) break;
      if (!samples.empty() && r.sample <= samples.back().sequence->sample)
        return bad_input(where + "its samples are not in order");
      std::string wrong = apply(r, tokens, logprobs, raw_logprobs, limits.vocab_size, s.get());
      if (wrong.empty()) wrong = apply_spans(r, spans, identity_.weight_version, s.get());
      if (!wrong.empty()) return bad_input(where + "sample " + std::to_string(r.sample) + " " + wrong);
      s->sample = r.sample;
      s->noise = r.noise;
      s->spec = r.spec;
      s->finish_reason = static_cast<otr_finish_reason>(r.finish_reason);
      s->error.assign(error.begin(), error.end());
      // Its last tokens may have been told before its end was.
      const std::optional<otr_finish_reason> end = r.is_finished == 1 ? std::nullopt : s->end();
      if (end) s->finish_reason = *end;
      samples.push_back({.sequence = std::move(s), .is_finished = r.is_finished == 1 || end});
    }
    groups.push_back(std::move(samples));
  }
  if (!in.at_end() || groups.size() != num_groups_) return bad_input(name_ + ": its lengths do not add up");
  return groups;
}

}  // namespace otr
