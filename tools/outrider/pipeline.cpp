#include "tools/outrider/pipeline.h"

#include <chrono>
#include <cstdio>

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

PipelineCounts Pipeline::run() {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    feed();
    if (num_outstanding_ > 0) {
      take_result();
      write_finished();
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
    const LineReader::Next kind = input_->next(/*may_block=*/num_outstanding_ == 0, &text);
    if (kind == LineReader::Next::kNotYet) return;
    if (kind == LineReader::Next::kEnd) {
      input_ended_ = true;
    } else {
      take_line(kind, text);
    }
  }
}

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
  store(view);
  otr_result_destroy(result);
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
