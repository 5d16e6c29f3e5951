#include "runtime/worker_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

#include "kernels/base/descriptor.h"
#include "loader/xxh64.h"

namespace otr {
namespace {

constexpr size_t kMostFiles = 253;  // that one message carries

struct ChannelHeader {
  uint32_t size;
  uint16_t type, num_files;
  uint64_t number, payload_sum, header_sum;
};
static_assert(sizeof(ChannelHeader) == 32);

uint64_t sum_of(const ChannelHeader& h) { return xxh64(&h, offsetof(ChannelHeader, header_sum)); }

Status lost(const char* what) { return io_error(std::string(what) + ": " + std::generic_category().message(errno)); }

}  // namespace

WorkerChannel::WorkerChannel(OwnedFd fd) : fd_(std::move(fd)) {
  const int flags = fcntl(fd_.get(), F_GETFL);
  if (flags >= 0) (void)fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK);
}

uint64_t WorkerChannel::queue(WireType type, WireView payload, std::vector<OwnedFd> files) {
  ChannelHeader h{.size = static_cast<uint32_t>(payload.size()),
                  .type = static_cast<uint16_t>(type),
                  .num_files = static_cast<uint16_t>(files.size()),
                  .number = num_sent_ + 1,
                  .payload_sum = xxh64(payload.data(), payload.size()),
                  .header_sum = 0};
  h.header_sum = sum_of(h);
  const size_t begin = out_.size();
  out_.resize(begin + sizeof h + payload.size());
  std::memcpy(out_.data() + begin, &h, sizeof h);
  if (!payload.empty()) std::memcpy(out_.data() + begin + sizeof h, payload.data(), payload.size());
  if (std::exchange(corrupts_, false)) out_.back() ^= std::byte{1};
  if (!files.empty()) files_to_send_.push_back({.at = begin, .files = std::move(files)});
  return ++num_sent_;
}

void WorkerChannel::shrink(int32_t bytes) { (void)setsockopt(fd_.get(), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes); }

void WorkerChannel::queue_half(WireType type, WireView payload) {
  const size_t begin = out_.size();
  queue(type, payload);
  out_.resize(begin + (out_.size() - begin + 1) / 2);
}

Status WorkerChannel::flush() {
  while (queued_bytes() > 0) {
    const auto next =
        std::find_if(files_to_send_.begin(), files_to_send_.end(), [this](const Parcel& p) { return p.at > sent_; });
    iovec bytes{out_.data() + sent_, (next == files_to_send_.end() ? out_.size() : next->at) - sent_};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(kMostFiles * sizeof(int))];
    std::vector<int> files;
    if (!files_to_send_.empty() && files_to_send_.front().at == sent_) {
      for (const OwnedFd& file : files_to_send_.front().files) files.push_back(file.get());
      const size_t size = files.size() * sizeof(int);
      if (files.size() > kMostFiles) return Status(StatusCode::kUnsupported, "more shared files than a message carries");
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(size);
      cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(size);
      std::memcpy(CMSG_DATA(c), files.data(), size);
    }
    const ssize_t sent = sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (sent < 0) return lost("cannot send to the other process");
    if (!files.empty()) files_to_send_.pop_front();
    sent_ += static_cast<size_t>(sent);
  }
  out_.clear();
  sent_ = 0;
  return {};
}

Result<bool> WorkerChannel::fill() {
  constexpr size_t kPiece = size_t{1} << 16;
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(std::exchange(read_, 0)));
  for (;;) {
    const size_t begin = in_.size();
    in_.resize(begin + kPiece);
    iovec bytes{in_.data() + begin, kPiece};
    alignas(cmsghdr) char control[CMSG_SPACE(kMostFiles * sizeof(int))];
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
    in_.resize(begin + static_cast<size_t>(std::max<ssize_t>(0, got)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got < 0 && errno == ECONNRESET) return false;
    if (got < 0) return lost("cannot receive from the other process");
    if (got == 0) return false;
    std::array<OwnedFd, kMostFiles> files;  // closed again should there be no memory to keep them
    size_t count = 0;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
      for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) && count < kMostFiles; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        files[count++] = OwnedFd(above_standard(fd));
      }
    }
    // The system ends a message behind the files of one frame; of those that it refuses, the last ones are cut off.
    if (count > 0 || (message.msg_flags & MSG_CTRUNC) != 0) {
      arrived_.emplace_back(std::make_move_iterator(files.begin()),
                            std::make_move_iterator(files.begin() + static_cast<std::ptrdiff_t>(count)));
    }
    if (in_.size() > 2 * kMostPayload) return true;  // read it first
  }
}

Result<bool> WorkerChannel::next(Frame* frame) {
  ChannelHeader h;
  if (read_ == in_.size() && !arrived_.empty()) return bad_input("files have come without a frame");
  if (in_.size() - read_ < sizeof h) return false;
  std::memcpy(&h, in_.data() + read_, sizeof h);
  if (h.header_sum != sum_of(h)) return bad_input("a frame's header is damaged");
  if (h.number != num_received_ + 1)
    return bad_input("frame " + std::to_string(h.number) + " comes after " + std::to_string(num_received_));
  if (!is_wire_type(h.type)) return bad_input("a frame is of an unknown type: " + std::to_string(h.type));
  if (h.size > kMostPayload) return bad_input("a frame of " + std::to_string(h.size) + " bytes is too long");
  if (in_.size() - read_ - sizeof h < h.size) return false;
  const WireView payload(in_.data() + read_ + sizeof h, h.size);
  if (xxh64(payload.data(), payload.size()) != h.payload_sum) return bad_input("a frame's contents are damaged");
  files_.clear();
  if (h.num_files > 0) {
    if (arrived_.empty() || arrived_.front().size() > h.num_files) return bad_input("a frame has not the files that it names");
    files_ = std::move(arrived_.front());
    files_.resize(h.num_files);
    arrived_.pop_front();
  }
  read_ += sizeof h + h.size;
  ++num_received_;
  *frame = {.type = static_cast<WireType>(h.type), .number = h.number, .payload = payload};
  return true;
}

Result<std::vector<OwnedFd>> WorkerChannel::take_files(size_t count) {
  if (count > files_.size()) return bad_input("a frame names a file that has not come");
  const auto end = files_.begin() + static_cast<std::ptrdiff_t>(count);
  std::vector<OwnedFd> taken(std::make_move_iterator(files_.begin()), std::make_move_iterator(end));
  files_.erase(files_.begin(), end);
  return taken;
}

void WorkerChannel::shutdown() { (void)::shutdown(fd_.get(), SHUT_RDWR); }

void wait_for_channel(const WorkerChannel& channel, bool to_write, int wake, int64_t timeout_ms) {
  pollfd fds[2] = {{.fd = channel.fd(), .events = static_cast<short>(to_write ? POLLIN | POLLOUT : POLLIN), .revents = 0},
                   {.fd = wake, .events = POLLIN, .revents = 0}};
  const int64_t most = std::numeric_limits<int>::max();
  (void)poll(fds, 2,
             static_cast<int>(std::clamp<int64_t>(timeout_ms, 0, most)));  // whoever waits looks for himself what has come
}

int64_t ms_until(std::chrono::steady_clock::time_point limit) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(limit - std::chrono::steady_clock::now()).count() + 1;
}

}  // namespace otr
