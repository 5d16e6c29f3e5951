#include "tools/outrider/pipeline.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "tools/outrider/failure.h"

namespace otr::cli {
namespace {

// How long to wait for a result while a pipe may give another line, and otherwise (the progress bar moves on).
constexpr int64_t kPollMs = 20;
constexpr int64_t kWaitMs = 200;

}  // namespace

int PipelineCounts::exit_code() const {
  if (num_failed_samples > 0) return kExitFailure;
  return num_bad_lines > 0 ? kExitBadInput : kExitOk;
}

PendingLine LineCommand::known(std::string_view, int64_t) { throw Failure(kExitUsage, "this command keeps no checkpoints"); }

PipelineCounts Pipeline::run() {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    feed();
    if (num_outstanding_ > 0) {
      take_result();
      write_finished();
      if (checkpoint_ != nullptr && checkpoint_->is_due(counts_.num_samples)) {
        checkpoint_->save(engine_, [this] {
          output_->sync();
          return state();
        });
      }
      progress_->update(fraction_done(), counts_.num_samples, counts_.num_tokens);
    } else if (input_ended_) {
      break;
    }
  }
  progress_->clear();
  counts_.wall_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return counts_;
}

// Submits lines until enough is outstanding, the input ends, or the next line has not arrived.
void Pipeline::feed() {
  while (!input_ended_ && num_outstanding_ < max_outstanding_) {
    std::string_view text;
    const LineReader::Next kind = read_line(/*may_block=*/num_outstanding_ == 0, &text);
    if (kind == LineReader::Next::kNotYet) return;
    if (kind == LineReader::Next::kEnd) {
      input_ended_ = true;
    } else {
      take_line(kind, text);
    }
  }
}

LineReader::Next Pipeline::read_line(bool may_block, std::string_view* text) {
  const LineReader::Next kind = input_->next(may_block, text);
  if (checkpoint_ != nullptr && kind == LineReader::Next::kLine) input_hash_ = hash_line(input_hash_, *text);
  if (checkpoint_ != nullptr && kind == LineReader::Next::kTooLong) input_hash_ = hash_line(input_hash_, "");
  return kind;
}

// ---- Checkpoints -----------------------------------------------------------------------------------------------------------

RunState Pipeline::state() const {
  RunState s{.lines_read = input_->line_number(),
             .input_hash = input_hash_,
             .bad_lines = bad_lines_,
             .output_bytes = output_->written(),
             .first_tag = first_tag_,
             .num_written = pending_.empty() ? 0 : pending_.front().num_written,
             .held = {},
             .num_samples = counts_.num_samples,
             .num_failed_samples = counts_.num_failed_samples,
             .num_tokens = counts_.num_tokens};
  for (size_t i = 0; i < pending_.size(); ++i) {
    for (size_t sample = 0; sample < pending_[i].lines.size(); ++sample) {
      const std::string& text = pending_[i].lines[sample];
      if (!text.empty()) s.held.push_back({first_tag_ + i, static_cast<uint32_t>(sample), text});
    }
  }
  return s;
}

void Pipeline::resume(const RunState& state) {
  const auto other = [this](const std::string& what) {
    return Failure(kExitBadInput, "checkpoint " + checkpoint_->path() + ": " + what);
  };
  first_tag_ = state.first_tag;
  bad_lines_ = state.bad_lines;
  uint64_t next_tag = 0;
  for (int64_t i = 0; i < state.lines_read; ++i) {
    std::string_view text;
    const LineReader::Next kind = read_line(/*may_block=*/true, &text);
    if (kind == LineReader::Next::kEnd) {
      throw other("of other prompts: it has read " + std::to_string(state.lines_read) + " lines, and " + input_->name() +
                  " has " + std::to_string(i));
    }
    if (kind == LineReader::Next::kLine) restore_line(text, &next_tag, state.first_tag);
  }
  if (input_hash_ != state.input_hash)
    throw other("of other prompts: the first " + std::to_string(state.lines_read) + " lines of " + input_->name() +
                " are not those it has read");
  for (const HeldLine& held : state.held) {
    const size_t line = held.tag - first_tag_;
    if (held.tag < first_tag_ || line >= pending_.size() || held.sample >= pending_[line].lines.size())
      throw other("damaged: it holds a line of no prompt");
    pending_[line].lines[held.sample] = held.text;
    --num_outstanding_;
    done_ += pending_[line].bytes_per_sample;
  }
  if (!pending_.empty()) {
    pending_.front().num_written = state.num_written;
    num_outstanding_ -= static_cast<int64_t>(state.num_written);
  }
  counts_.num_bad_lines = static_cast<int64_t>(bad_lines_.size());
  counts_.num_samples = state.num_samples;
  counts_.num_failed_samples = state.num_failed_samples;
  counts_.num_tokens = state.num_tokens;
}

// A line that the earlier run has read: written, submitted, blank or bad.
void Pipeline::restore_line(std::string_view text, uint64_t* next_tag, uint64_t first_tag) {
  const double bytes = static_cast<double>(input_->consumed() - consumed_);
  consumed_ = input_->consumed();
  done_ += bytes;
  const bool was_bad = std::find(bad_lines_.begin(), bad_lines_.end(), input_->line_number()) != bad_lines_.end();
  if (was_bad || text.find_first_not_of(" \t\r") == std::string_view::npos) return;
  PendingLine line;
  try {
    line = command_->known(text, input_->line_number());
  } catch (const BadLine&) {
    return;  // another input: its hash will show it
  }
  ++counts_.num_lines;
  if ((*next_tag)++ < first_tag) return;
  line.lines.resize(static_cast<size_t>(line.num_samples));
  line.bytes_per_sample = bytes / line.num_samples;
  done_ -= bytes;
  num_outstanding_ += line.num_samples;
  pending_.push_back(std::move(line));
}

// ---- Lines -----------------------------------------------------------------------------------------------------------------

void Pipeline::take_line(LineReader::Next kind, std::string_view text) {
  const double bytes = static_cast<double>(input_->consumed() - consumed_);
  consumed_ = input_->consumed();
  done_ += bytes;
  if (kind == LineReader::Next::kLine && text.find_first_not_of(" \t\r") == std::string_view::npos) return;
  try {
    if (kind == LineReader::Next::kTooLong) throw BadLine("longer than " + std::to_string(kMaxLineBytes) + " bytes");
    PendingLine line = command_->submit(text, input_->line_number(), first_tag_ + pending_.size());
    line.lines.resize(static_cast<size_t>(line.num_samples));
    line.bytes_per_sample = bytes / line.num_samples;
    done_ -= bytes;
    num_outstanding_ += line.num_samples;
    ++counts_.num_lines;
    pending_.push_back(std::move(line));
  } catch (const BadLine& bad) {
    ++counts_.num_bad_lines;
    bad_lines_.push_back(input_->line_number());
    progress_->clear();
    std::fprintf(stderr, "%s:%lld: %s\n", input_->name().c_str(), static_cast<long long>(input_->line_number()), bad.what());
  }
}

void Pipeline::take_result() {
  otr_result* result = nullptr;
  const otr_status status = otr_wait(engine_, input_ended_ ? kWaitMs : kPollMs, &result);
  if (status == OTR_TIMEOUT) return;
  if (status != OTR_OK) throw Failure(kExitFailure, std::string("waiting for results: ") + otr_last_error(engine_));
  otr_result_view view;
  otr_result_get(result, &view, sizeof view);
  const bool engine_failed = view.finish_reason == OTR_FINISH_ERROR && view.error_status != OTR_FAULT;
  const std::string error = engine_failed ? view.error : "";
  if (!engine_failed) store(view);
  otr_result_destroy(result);
  if (engine_failed) throw Failure(kExitFailure, error);  // the sample has no line: it has not ended
}

void Pipeline::store(const otr_result_view& result) {
  PendingLine& line = pending_.at(result.tag - first_tag_);
  line.lines.at(result.sample) = command_->render(line, result);
  done_ += line.bytes_per_sample;
  --num_outstanding_;
  ++counts_.num_samples;
  counts_.num_tokens += static_cast<int64_t>(result.num_tokens);
  if (result.finish_reason == OTR_FINISH_ERROR) ++counts_.num_failed_samples;
}

// The share of the input that is dealt with; negative if its size is unknown.
double Pipeline::fraction_done() const { return input_->size() > 0 ? done_ / static_cast<double>(input_->size()) : -1; }

void Pipeline::write_finished() {
  while (!pending_.empty()) {
    PendingLine& line = pending_.front();
    for (; line.num_written < line.lines.size(); ++line.num_written) {
      std::string& text = line.lines[line.num_written];
      if (text.empty()) return;
      output_->write_line(text);
      text = std::string();
    }
    pending_.pop_front();
    ++first_tag_;
  }
}

}  // namespace otr::cli
