// Frames arrive whole, once and in order, or it is said that they did not.

#include "runtime/worker_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "loader/xxh64.h"
#include "tests/runtime/open_file_limit.h"

namespace otr {
namespace {

WireBytes bytes_of(const std::string& text) {
  const std::byte* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

struct Pair {
  Pair() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    raw = fds[0];
    sender = std::make_unique<WorkerChannel>(OwnedFd(fds[0]));
    receiver = std::make_unique<WorkerChannel>(OwnedFd(fds[1]));
  }
  // What the receiver says of its next frame: its payload, "none", or an error's text.
  std::string next() {
    const Result<bool> open = receiver->fill();
    if (!open.ok()) return open.status().message();
    WorkerChannel::Frame frame;
    const Result<bool> found = receiver->next(&frame);
    if (!found.ok()) return found.status().message();
    if (!found.value()) return open.value() ? "none" : receiver->is_torn() ? "torn" : "closed";
    return {reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size()};
  }

  std::unique_ptr<WorkerChannel> sender, receiver;
  int raw;
};

TEST(WorkerChannel, FramesArriveInOrder) {
  Pair p;
  EXPECT_EQ(p.next(), "none");
  EXPECT_EQ(p.sender->queue(WireType::kCancel, bytes_of("one")), 1u);
  EXPECT_EQ(p.sender->queue(WireType::kCancel, bytes_of("")), 2u);
  ASSERT_TRUE(p.sender->flush().ok());
  EXPECT_EQ(p.next(), "one");
  EXPECT_EQ(p.next(), "");
  const std::string large(1 << 22, 'x');  // more than any socket takes at once
  p.sender->queue(WireType::kStart, bytes_of(large));
  std::string got = "none";
  for (int i = 0; got == "none" && i < 1000; ++i) {
    ASSERT_TRUE(p.sender->flush().ok());
    got = p.next();
  }
  EXPECT_EQ(got, large);
  p.sender.reset();
  EXPECT_EQ(p.next(), "closed");
}

TEST(WorkerChannel, FilesTravelWithTheirFrame) {
  Pair p;
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const auto copies = [&fds] {
    std::vector<OwnedFd> files;
    for (const int fd : fds) files.push_back(OwnedFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)));
    return files;
  };
  p.sender->queue(WireType::kStart, bytes_of("before"));
  p.sender->queue(WireType::kSetup, bytes_of("files"), copies());
  p.sender->queue(WireType::kStart, bytes_of("between"));
  p.sender->queue(WireType::kSetup, bytes_of("more"), copies());
  ASSERT_TRUE(p.sender->flush().ok());
  EXPECT_EQ(p.next(), "before");
  EXPECT_EQ(p.next(), "files");
  std::vector<OwnedFd> files = std::move(p.receiver->take_files(2).value());
  EXPECT_EQ(p.next(), "between");
  EXPECT_EQ(p.next(), "more");
  EXPECT_FALSE(p.receiver->take_files(3).ok());
  EXPECT_TRUE(p.receiver->take_files(2).ok());
  EXPECT_EQ(write(files[1].get(), "!", 1), 1);
  char read_back = 0;
  EXPECT_EQ(read(fds[0], &read_back, 1), 1);
  EXPECT_EQ(read_back, '!');
  close(fds[0]);
  close(fds[1]);
}

// At its limit of open files a process is not given all that come: which ones it lacks is said, and the frame comes.
TEST(WorkerChannel, FilesThatTheSystemRefusesAreMissed) {
  Pair p;
  const OwnedFd file(dup(p.raw));
  const auto copies = [&file](int count) {
    std::vector<OwnedFd> files;
    for (int i = 0; i < count; ++i) files.push_back(file.duplicate());
    return files;
  };
  p.sender->queue(WireType::kReport, bytes_of("two"), copies(2));
  ASSERT_TRUE(p.sender->flush().ok());
  {
    const OpenFileLimit limit(1);
    EXPECT_EQ(p.next(), "two");
  }
  p.sender->queue(WireType::kReport, bytes_of("none"));
  p.sender->queue(WireType::kReport, bytes_of("one"), copies(1));
  ASSERT_TRUE(p.sender->flush().ok());
  const std::vector<OwnedFd> files = std::move(p.receiver->take_files(2).value());
  EXPECT_GE(files[0].get(), 0);
  EXPECT_EQ(files[1].get(), -1);
  EXPECT_EQ(p.next(), "none");
  EXPECT_EQ(p.receiver->num_files(), 0u);
  EXPECT_EQ(p.next(), "one");
  const std::vector<OwnedFd> more = std::move(p.receiver->take_files(1).value());
  EXPECT_GE(more[0].get(), 0);
}

// A receiver that does not read stops nobody, and nothing is lost.
TEST(WorkerChannel, AFullQueueWaits) {
  Pair p;
  const std::string text(1000, 'y');
  int queued = 0;
  while (p.sender->queued_bytes() == 0) {
    p.sender->queue(WireType::kReport, bytes_of(text));
    ++queued;
    ASSERT_TRUE(p.sender->flush().ok());
    ASSERT_LT(queued, 100'000);
  }
  const auto began = std::chrono::steady_clock::now();
  wait_for_channel(*p.sender, true, -1, 50);  // nothing comes, no room: the time is up
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(45));
  int received = 0;
  for (int i = 0; i < 100'000 && received < queued; ++i) {
    received += p.next() == text;
    ASSERT_TRUE(p.sender->flush().ok());
  }
  EXPECT_EQ(received, queued);
}

TEST(WorkerChannel, ASocketMayTakeLittleAtATime) {
  Pair p;
  p.sender->shrink(1);
  const std::string large(200'000, 'z');
  p.sender->queue(WireType::kStart, bytes_of(large));
  ASSERT_TRUE(p.sender->flush().ok());
  EXPECT_GT(p.sender->queued_bytes(), large.size() / 2);
  std::string got = "none";
  for (int i = 0; got == "none" && i < 1000; ++i) {
    ASSERT_TRUE(p.sender->flush().ok());
    got = p.next();
  }
  EXPECT_EQ(got, large);
}

TEST(WorkerChannel, DamageIsSeen) {
  {
    Pair p;
    p.sender->corrupt_next();
    p.sender->queue(WireType::kReport, bytes_of("text"));
    ASSERT_TRUE(p.sender->flush().ok());
    EXPECT_EQ(p.next(), "a frame's contents are damaged");
  }
  {
    Pair p;
    p.sender->queue_half(WireType::kReport, bytes_of("text"));
    ASSERT_TRUE(p.sender->flush().ok());
    EXPECT_EQ(p.next(), "none");
    p.sender.reset();
    EXPECT_EQ(p.next(), "torn");
  }
}

// Headers as nobody sends them.
TEST(WorkerChannel, WrongHeadersAreRefused) {
  struct {
    uint32_t size = 0;
    uint16_t type = static_cast<uint16_t>(WireType::kPause), num_files = 0;
    uint64_t number = 1, payload_sum = xxh64(nullptr, 0), header_sum = 0;
  } good;
  const auto refusal = [&good](const auto& spoil, bool seal = true) {
    Pair p;
    auto h = good;
    spoil(h);
    if (seal) h.header_sum = xxh64(&h, 24);
    EXPECT_EQ(write(p.raw, &h, sizeof h), static_cast<ssize_t>(sizeof h));
    return p.next();
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_EQ(refusal([](auto&) {}, false), "a frame's header is damaged");
  EXPECT_EQ(refusal([](auto& h) { h.number = 2; }), "frame 2 comes after 0");  // one is lost
  EXPECT_EQ(refusal([](auto& h) { h.number = 0; }), "frame 0 comes after 0");  // or repeated
  EXPECT_EQ(refusal([](auto& h) { h.type = 77; }), "a frame is of an unknown type: 77");
  EXPECT_EQ(refusal([](auto& h) { h.size = UINT32_MAX; }), "a frame of 4294967295 bytes is too long");
  EXPECT_EQ(refusal([](auto& h) { h.num_files = 1; }), "a frame has not the files that it names");
  EXPECT_EQ(refusal([](auto& h) { h.payload_sum = 1; }), "a frame's contents are damaged");
}

TEST(WorkerChannel, WhoeverIsGoneIsMissed) {
  Pair p;
  p.receiver.reset();
  p.sender->queue(WireType::kPause, {});
  EXPECT_EQ(p.sender->flush().code(), StatusCode::kIoError);
}

}  // namespace
}  // namespace otr
