#include "runtime/trace.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <system_error>

#include "kernels/base/descriptor.h"
#include "runtime/outrider.h"

namespace otr {

Result<std::unique_ptr<Trace>> Trace::create(const std::string& path, const PaceClock* pace) {
  const auto fail = [&path](const std::string& why) { return io_error("cannot write the trace " + path + ": " + why); };
  const int fd = above_standard(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
  if (fd < 0) return fail(std::generic_category().message(errno));
  struct stat info;
  if (::fstat(fd, &info) != 0 || S_ISFIFO(info.st_mode) ||
      S_ISSOCK(info.st_mode)) {  // whose reader could end the program by leaving
    ::close(fd);
    return fail("it is not a file");
  }
  return std::unique_ptr<Trace>(new Trace(path, fd, pace));
}

Trace::Trace(std::string path, int fd, const PaceClock* pace)
    : path_(std::move(path)), fd_(fd), pace_(pace), buffer_(new char[kBufferBytes]) {}

Trace::~Trace() {
  if (begun_) put("\n]\n");
  flush();
  ::close(fd_);
}

Status Trace::begin(std::string_view isa, int32_t num_workers, int32_t num_threads, int32_t max_batch, std::string_view policy,
                    std::vector<std::string> drafters) {
  drafters_ = std::move(drafters);
  num_workers_ = num_workers;
  std::string text = "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"outrider " +
                     std::string(otr_version()) + ", " + std::string(isa) + ", " + std::string(policy) + "\"}},\n";
  for (int32_t w = 1; w <= num_workers; ++w) {
    text += "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":" + std::to_string(w) + ",\"args\":{\"name\":\"worker " +
            std::to_string(w - 1) + "\"}},\n";
  }
  text += "{\"name\":\"outrider\",\"ph\":\"M\",\"pid\":1,\"args\":{\"version\":\"" + std::string(otr_version()) +
          "\",\"isa\":\"" + std::string(isa) + "\",\"num_workers\":" + std::to_string(num_workers) +
          ",\"num_threads\":" + std::to_string(num_threads) + ",\"max_batch\":" + std::to_string(max_batch) + ",\"policy\":\"" +
          std::string(policy) + "\",\"drafters\":[";
  for (size_t d = 0; d < drafters_.size(); ++d) text += (d == 0 ? "\"" : ",\"") + drafters_[d] + "\"";
  text += "]}}";
  constexpr int kNoRegularFile = EINVAL;  // it has no length
  if (::ftruncate(fd_, 0) != 0 && errno != kNoRegularFile) error_ = errno;
  for (size_t at = 0; at < text.size(); at += kBufferBytes) {  // a policy's text may be longer than the buffer
    put(std::string_view(text).substr(at, kBufferBytes));
    flush();
  }
  begun_ = true;
  if (error_ == 0) return {};
  return io_error("cannot write the trace " + path_ + ": " + std::generic_category().message(error_));
}

void Trace::put(std::string_view text) {
  assert(size_ + text.size() <= kBufferBytes);
  std::memcpy(buffer_.get() + size_, text.data(), text.size());
  size_ += text.size();
}

void Trace::put(int64_t number) {
  char* end = buffer_.get() + size_;
  size_ = static_cast<size_t>(std::to_chars(end, end + 24, number).ptr - buffer_.get());
}

// A number that is not finite has no spelling in JSON.
void Trace::put(double number, int decimals) {
  constexpr double kMost = 1e15;
  char* end = buffer_.get() + size_;
  const double written = std::isfinite(number) ? std::min(std::max(number, -kMost), kMost) : 0;
  size_ = static_cast<size_t>(std::to_chars(end, end + 40, written, std::chars_format::fixed, decimals).ptr - buffer_.get());
}

void Trace::field(std::string_view name, int64_t number) {
  put(",\"");
  put(name);
  put("\":");
  put(number);
}

void Trace::field(std::string_view name, double number, int decimals) {
  put(",\"");
  put(name);
  put("\":");
  put(number, decimals);
}

// Up to its arguments.
void Trace::slice(std::string_view name, int32_t worker, double at_us, double seconds) {
  put(",\n{\"name\":\"");
  put(name);
  put("\",\"ph\":\"X\",\"pid\":1");
  field("tid", int64_t{worker} + 1);
  field("ts", at_us, 1);
  field("dur", 1e6 * seconds, 1);
}

// A counter belongs to the process: those of several workers need names of their own.
void Trace::counter(std::string_view name, int32_t worker, double at_us, std::string_view key, double value) {
  put(",\n{\"name\":\"");
  put(name);
  if (num_workers_ > 1) {
    put(" of worker ");
    put(int64_t{worker});
  }
  put("\",\"ph\":\"C\",\"pid\":1");
  field("ts", at_us, 1);
  put(",\"args\":{\"");
  put(key);
  put("\":");
  put(value, 3);
  put("}}");
}

void Trace::plan(const TickPlan& plan) {
  put(",\"drafters\":[");
  bool first = true;
  for (size_t d = 0; d < drafters_.size(); ++d) {
    if ((plan.drafters >> d & 1) == 0) continue;
    put(first ? "\"" : ",\"");
    put(drafters_[d]);
    put("\"");
    first = false;
  }
  put("]");
  if (plan.drafters != 0) {
    field("depth", int64_t{plan.depth});
    field("top_k", int64_t{plan.top_k});
    field("verify_tokens", int64_t{plan.verify_tokens});
  }
  if (plan.expected_ms > 0) field("expected_ms", plan.expected_ms, 4);
  if (plan.expected_tokens > 0) field("expected_tokens", plan.expected_tokens, 3);
}

void Trace::tick(const TraceTick& t) {
  const double age = pace_ != nullptr && pace_->scale() > 0 ? t.age / pace_->scale() : t.age;
  const double at = 1e6 * (seconds() - age - t.tick);
  const std::lock_guard<std::mutex> lock(mutex_);
  slice("tick", t.worker, at, t.tick);
  put(",\"args\":{\"tick\":");
  put(t.number);
  field("batch", int64_t{t.batch});
  field("rows", int64_t{t.rows});
  field("offered", int64_t{t.offered});
  plan(*t.plan);
  field("verified", t.verified);
  field("drafted", t.drafted);
  field("accepted", t.accepted);
  field("tokens", t.tokens);
  field("prefill_tokens", t.prefill_tokens);
  put("}}");
  if (t.plan->drafters != 0) {
    slice("draft", t.worker, at + 1e6 * t.draft_at, t.draft);
    put("}");
  }
  slice("verify", t.worker, at + 1e6 * t.verify_at, t.verify);
  put("}");
  counter("batch", t.worker, at, "active", t.batch);
  counter("acceptance", t.worker, at, "kept",
          t.drafted == 0 ? 0.0 : static_cast<double>(t.accepted) / static_cast<double>(t.drafted));
  counter("tokens per second", t.worker, at, "tokens", static_cast<double>(t.tokens) / t.tick);
  end_events();
}

void Trace::sample(const TraceSample& s) {
  const std::lock_guard<std::mutex> lock(mutex_);
  put(",\n{\"name\":\"sample\",\"ph\":\"i\",\"s\":\"t\",\"pid\":1");
  field("tid", int64_t{s.worker} + 1);
  field("ts", 1e6 * seconds(), 1);
  put(",\"args\":{\"group\":");
  put(static_cast<int64_t>(s.group));
  field("sample", int64_t{s.sample});
  field("tokens", s.tokens);
  put(",\"finish_reason\":\"");
  put(s.finish_reason);
  put("\"}}");
  end_events();
}

void Trace::end_events() {
  if (size_ + kMostEventsBytes > kBufferBytes || clock_.seconds() - flushed_ > kFlushSeconds) write_out();
}

void Trace::flush() {
  const std::lock_guard<std::mutex> lock(mutex_);
  write_out();
}

void Trace::write_out() {
  flushed_ = clock_.seconds();
  const NoSizeSignal no_signal;
  for (size_t done = 0; done < size_ && error_ == 0;) {
    const ssize_t put = ::write(fd_, buffer_.get() + done, size_ - done);
    if (put < 0 && errno != EINTR) error_ = errno;
    if (put > 0) done += static_cast<size_t>(put);
  }
  size_ = 0;
}

}  // namespace otr
