// Network cards and the messages that pass through them, in simulated time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <vector>

namespace muster {

// Messages that a host sends, in order. A burst is one object because a step of a large cluster has
// tens of millions of messages.
struct NetworkBurst {
  int from = 0;          // host
  int64_t priority = 0;  // the lowest leaves first; equal ones leave in the order of Send()
  int messages = 1;
  // Opaque values of the sender.
  int kind = 0;
  int subject = 0;
};

struct NetworkMessage {
  int to = 0;  // host; a message to the sender's own host is skipped
  double bytes = 0;
  // Opaque values of the sender.
  int kind = 0;
  int chunk = 0;
};

struct NetworkRates {
  double bytes_per_second = 0;  // payload of each card in each direction
  double latency_seconds = 0;   // from one card to another
  double message_seconds = 0;   // time per message that a card is busy in addition to the bytes
};

// Every host has a full-duplex card on a switch that never blocks and never loses a message. A card
// sends one message at a time, from the most urgent waiting burst. A receiving card takes one
// message at a time, in the order in which their first bytes arrive. It receives a message while
// the sender still sends it (cut-through). Messages that a card cannot take yet wait in the switch.
class NetworkModel {
 public:
  // Returns message `index` of the burst. Called when the message leaves.
  using MessageOf = std::function<NetworkMessage(const NetworkBurst&, int index)>;

  NetworkModel(int hosts, const NetworkRates& rates, MessageOf message_of)
      : rates_(rates), message_of_(std::move(message_of)), cards_(hosts) {}

  void Send(double now, const NetworkBurst& burst);

  // The time of the next event; infinity if nothing is in flight.
  double next_time() const {
    return events_.empty() ? std::numeric_limits<double>::infinity() : events_.top().time;
  }
  // Runs the next event. Returns true if it delivered `message`.
  bool Advance(NetworkMessage& message);

  double bytes_sent(int host) const { return cards_[host].bytes_sent; }

 private:
  struct Waiting {
    NetworkBurst burst;
    int64_t number;
    int next = 0;                                 // index of the next message of the burst
    bool operator<(const Waiting& other) const {  // the front of a heap is the largest
      return burst.priority != other.burst.priority ? burst.priority > other.burst.priority
                                                    : number > other.number;
    }
  };
  struct Delivery {
    double time;
    int64_t number;
    NetworkMessage message;
  };
  struct Card {
    std::vector<Waiting> waiting;  // a heap
    std::deque<Delivery> coming;   // by time
    bool sending = false;
    double receiving_until = 0;
    double bytes_sent = 0;
  };
  // Each card has at most two events, so the queue stays small with any number of messages in
  // flight.
  struct Event {
    double time;
    int64_t number;
    int card;
    bool sent;  // false: the first message of `coming` has arrived
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };

  void StartSending(double now, int host);
  bool NextMessage(int host, NetworkMessage& message);
  void ExpectDelivery(int host);

  const NetworkRates rates_;
  const MessageOf message_of_;
  std::vector<Card> cards_;
  std::priority_queue<Event> events_;
  int64_t numbers_ = 0;
};

}  // namespace muster
