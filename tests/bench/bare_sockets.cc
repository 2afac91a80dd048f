// TCP on loopback with one connection between each worker and each server. A message is the
// tensor's number (8 bytes) and its elements.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/bench/bare_substrate.h"

namespace muster {
namespace {

constexpr int64_t kNumberBytes = sizeof(int64_t);

void Tune(int fd) {
  const int on = 1;
  PCHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
  PCHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
}

bool WouldBlock(ssize_t result) {
  if (result > 0) return false;
  PCHECK(result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) << "a connection broke";
  return true;
}

class Connection {
 public:
  // `place` returns the memory that receives a tensor's elements.
  Connection(int fd, int64_t bytes, std::function<float*(int)> place)
      : fd_(fd), bytes_(bytes), place_(std::move(place)) {
    Tune(fd);
  }
  int fd() const { return fd_; }
  bool sending() const { return !outgoing_.empty(); }

  void Send(int tensor, const float* elements) {
    outgoing_.push_back({.number = tensor, .elements = elements});
    Flush();
  }

  void Flush() {
    while (!outgoing_.empty()) {
      Outgoing& message = outgoing_.front();
      const int64_t number_left = std::max<int64_t>(0, kNumberBytes - message.sent);
      const int64_t payload_sent = std::max<int64_t>(0, message.sent - kNumberBytes);
      const iovec parts[] = {
          {reinterpret_cast<char*>(&message.number) + kNumberBytes - number_left,
           static_cast<size_t>(number_left)},
          {const_cast<char*>(reinterpret_cast<const char*>(message.elements)) + payload_sent,
           static_cast<size_t>(bytes_ - payload_sent)}};
      const ssize_t sent = writev(fd_, parts, 2);
      if (WouldBlock(sent)) return;
      message.sent += sent;
      if (message.sent < kNumberBytes + bytes_) return;
      outgoing_.pop_front();
    }
  }

  // Returns the number of a complete tensor, or -1 if none is complete.
  int Receive() {
    while (received_ < kNumberBytes + bytes_) {
      char* const place = received_ < kNumberBytes
                              ? reinterpret_cast<char*>(&number_) + received_
                              : reinterpret_cast<char*>(elements_) + received_ - kNumberBytes;
      const int64_t wanted =
          received_ < kNumberBytes ? kNumberBytes - received_ : kNumberBytes + bytes_ - received_;
      const ssize_t got = recv(fd_, place, wanted, 0);
      if (WouldBlock(got)) return -1;
      received_ += got;
      if (received_ == kNumberBytes) elements_ = place_(static_cast<int>(number_));
    }
    received_ = 0;
    return static_cast<int>(number_);
  }

 private:
  struct Outgoing {
    int64_t number;
    const float* elements;
    int64_t sent = 0;
  };

  const int fd_;
  const int64_t bytes_;
  const std::function<float*(int)> place_;
  std::deque<Outgoing> outgoing_;
  int64_t number_ = 0;
  float* elements_ = nullptr;
  int64_t received_ = 0;
};

// The connections of one process.
class Connections {
 public:
  explicit Connections(bool poll) : poll_(poll) {}
  void Add(std::unique_ptr<Connection> connection) {
    connections_.push_back(std::move(connection));
  }
  Connection& operator[](int i) { return *connections_[i]; }

  struct Item {
    int connection;
    int tensor;
  };
  Item Await() {
    for (;; Sleep()) {
      for (size_t tried = 0; tried < connections_.size(); ++tried) {
        next_ = static_cast<int>((next_ + 1) % connections_.size());
        connections_[next_]->Flush();
        if (const int tensor = connections_[next_]->Receive(); tensor >= 0) return {next_, tensor};
      }
    }
  }

  bool Settle() {
    bool settled = true;
    for (const auto& connection : connections_) {
      connection->Flush();
      settled &= !connection->sending();
    }
    return settled;
  }

 private:
  void Sleep() {
    if (poll_) return;
    std::vector<pollfd> events;
    for (const auto& connection : connections_) {
      const short sending = connection->sending() ? POLLOUT : 0;
      events.push_back(
          {.fd = connection->fd(), .events = static_cast<short>(POLLIN | sending), .revents = 0});
    }
    poll(events.data(), events.size(), -1);
  }

  const bool poll_;
  std::vector<std::unique_ptr<Connection>> connections_;
  int next_ = 0;
};

class SocketWorker : public BareWorkerEnd {
 public:
  SocketWorker(const BareLoopOptions& options, int rank, const std::vector<sockaddr_in>& servers)
      : servers_(options.servers),
        elements_(options.message_bytes / sizeof(float)),
        gradients_(options.tensors * elements_),
        values_(options.tensors * elements_),
        connections_(options.poll) {
    for (const sockaddr_in& server : servers) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      PCHECK(connect(fd, reinterpret_cast<const sockaddr*>(&server), sizeof(server)) == 0);
      PCHECK(write(fd, &rank, sizeof(rank)) == sizeof(rank));
      connections_.Add(std::make_unique<Connection>(
          fd, options.message_bytes, [this](int tensor) { return &values_[tensor * elements_]; }));
    }
  }
  float* gradient(int tensor) override { return &gradients_[tensor * elements_]; }
  const float* values(int tensor) override { return &values_[tensor * elements_]; }
  void Push(int tensor) override { connections_[tensor % servers_].Send(tensor, gradient(tensor)); }
  int AwaitValues() override { return connections_.Await().tensor; }
  bool Settle() override { return connections_.Settle(); }

 private:
  const int servers_;
  const int64_t elements_;
  std::vector<float> gradients_, values_;
  Connections connections_;
};

class SocketServer : public BareServerEnd {
 public:
  SocketServer(const BareLoopOptions& options, int listening)
      : tensors_(options.tensors),
        elements_(options.message_bytes / sizeof(float)),
        gradients_(options.workers * options.tensors * elements_),
        connections_(options.poll) {
    std::vector<int> by_rank(options.workers);
    for (int i = 0; i < options.workers; ++i) {
      const int fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
      PCHECK(fd >= 0);
      int rank = 0;
      PCHECK(recv(fd, &rank, sizeof(rank), MSG_WAITALL) == sizeof(rank));
      by_rank[rank] = fd;
    }
    for (int rank = 0; rank < options.workers; ++rank) {
      connections_.Add(std::make_unique<Connection>(
          by_rank[rank], options.message_bytes,
          [this, rank](int tensor) { return Gradient(tensor, rank); }));
    }
  }
  Arrival AwaitPush() override {
    const Connections::Item item = connections_.Await();
    return {.tensor = item.tensor, .worker = item.connection};
  }
  const float* gradient(int tensor, int worker) override { return Gradient(tensor, worker); }
  float* place(int, int) override { return nullptr; }
  void Answer(int tensor, int worker, const float* values) override {
    connections_[worker].Send(tensor, values);
  }
  bool Settle() override { return connections_.Settle(); }

 private:
  float* Gradient(int tensor, int worker) {
    return &gradients_[(int64_t{worker} * tensors_ + tensor) * elements_];
  }

  const int tensors_;
  const int64_t elements_;
  std::vector<float> gradients_;
  Connections connections_;
};

class Sockets : public BareSubstrate {
 public:
  explicit Sockets(const BareLoopOptions& options) : options_(options) {
    for (int i = 0; i < options.servers; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      socklen_t size = sizeof(address);
      PCHECK(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
      PCHECK(listen(fd, options.workers) == 0);
      PCHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
      listening_.push_back(fd);
      addresses_.push_back(address);
    }
  }
  ~Sockets() override {
    for (const int fd : listening_) close(fd);
  }
  std::unique_ptr<BareWorkerEnd> OpenWorker(int rank) override {
    return std::make_unique<SocketWorker>(options_, rank, addresses_);
  }
  std::unique_ptr<BareServerEnd> OpenServer(int index) override {
    return std::make_unique<SocketServer>(options_, listening_[index]);
  }

 private:
  const BareLoopOptions options_;
  std::vector<int> listening_;
  std::vector<sockaddr_in> addresses_;
};

}  // namespace

std::unique_ptr<BareSubstrate> MakeBareSockets(const BareLoopOptions& options) {
  return std::make_unique<Sockets>(options);
}

}  // namespace muster
