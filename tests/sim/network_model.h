// Network cards and what passes through them, in simulated time.
#pragma once

#include <cstdint>
#include <limits>
#include <queue>
#include <vector>

namespace muster {

struct NetworkMessage {
  int from = 0;  // hosts
  int to = 0;
  double bytes = 0;
  int64_t priority = 0;  // the lowest leaves first; equals in the order of Send()
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
// message at a time, the most urgent that waits; a receiving card takes messages one after the
// other in the order in which their first bytes come, while they are still being sent (cut
// through). What it cannot take yet waits in the switch.
class NetworkModel {
 public:
  NetworkModel(int hosts, const NetworkRates& rates) : rates_(rates), cards_(hosts) {}

  void Send(double now, const NetworkMessage& message);

  // When something happens next; infinity: nothing is under way.
  double next_time() const {
    return events_.empty() ? std::numeric_limits<double>::infinity() : events_.top().time;
  }
  // Lets that happen. True: `message` has been delivered at that time.
  bool Advance(NetworkMessage& message);

  double bytes_sent(int host) const { return cards_[host].bytes_sent; }

 private:
  struct Waiting {
    NetworkMessage message;
    int64_t number;
    bool operator<(const Waiting& other) const {  // std::priority_queue: the largest goes first
      return message.priority != other.message.priority ? message.priority > other.message.priority
                                                        : number > other.number;
    }
  };
  struct Card {
    std::priority_queue<Waiting> waiting;
    bool sending = false;
    double receiving_until = 0;
    double bytes_sent = 0;
  };
  struct Event {
    double time;
    int64_t number;
    int card;  // that has sent; -1: `message` is delivered
    NetworkMessage message;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };

  void StartSending(double now, int host);

  const NetworkRates rates_;
  std::vector<Card> cards_;
  std::priority_queue<Event> events_;
  int64_t numbers_ = 0;
};

}  // namespace muster
