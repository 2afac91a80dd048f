// Network cards and what passes through them, in simulated time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <vector>

namespace muster {

// What a host has for others: `messages` of them, which leave in their order. Kept as one thing, as
// a step of a large cluster has tens of millions of messages.
struct NetworkBurst {
  int from = 0;          // host
  int64_t priority = 0;  // the lowest leaves first; equals in the order of Send()
  int messages = 1;
  // The sender's words, not looked at.
  int kind = 0;
  int subject = 0;
};

struct NetworkMessage {
  int to = 0;  // host; the sender's own: is left out
  double bytes = 0;
  // The sender's words, not looked at.
  int kind = 0;
  int chunk = 0;
};

struct NetworkRates {
  double bytes_per_second = 0;  // of payload, of each card in each direction
  double latency_seconds = 0;   // from a card to another
  double message_seconds = 0;   // that a card is busy beside the bytes
};

// Every host has a full-duplex card on a switch that never blocks and never loses. A card sends one
// message at a time, of the most urgent burst that waits; a receiving card takes messages one after
// the other in the order in which their first bytes come, while they are still being sent (cut
// through). What it cannot take yet waits in the switch.
class NetworkModel {
 public:
  // Says what the burst's message `index` is, when it leaves.
  using MessageOf = std::function<NetworkMessage(const NetworkBurst&, int index)>;

  NetworkModel(int hosts, const NetworkRates& rates, MessageOf message_of)
      : rates_(rates), message_of_(std::move(message_of)), cards_(hosts) {}

  void Send(double now, const NetworkBurst& burst);

  // When something happens next; infinity: nothing is under way.
  double next_time() const {
    return events_.empty() ? std::numeric_limits<double>::infinity() : events_.top().time;
  }
  // Lets that happen. True: `message` has been delivered at that time.
  bool Advance(NetworkMessage& message);

  double bytes_sent(int host) const { return cards_[host].bytes_sent; }

 private:
  struct Waiting {
    NetworkBurst burst;
    int64_t number;
    int next = 0;                                 // message of the burst
    bool operator<(const Waiting& other) const {  // a heap's front is the largest
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
  // At most two of each card: so the queue stays small however much is under way.
  struct Event {
    double time;
    int64_t number;
    int card;
    bool sent;  // else the first that is coming has come
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
