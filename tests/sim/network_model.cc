#include "tests/sim/network_model.h"

#include <algorithm>

namespace muster {

void NetworkModel::Send(double now, const NetworkBurst& burst) {
  Card& card = cards_[burst.from];
  card.waiting.push_back({.burst = burst, .number = numbers_++});
  std::push_heap(card.waiting.begin(), card.waiting.end());
  if (!card.sending) StartSending(now, burst.from);
}

// Returns the next message to send in `message`; false if there is none.
bool NetworkModel::NextMessage(int host, NetworkMessage& message) {
  std::vector<Waiting>& waiting = cards_[host].waiting;
  while (!waiting.empty()) {
    Waiting& first = waiting.front();
    if (first.next < first.burst.messages) {
      message = message_of_(first.burst, first.next++);
      if (message.to != host) return true;
    } else {
      std::pop_heap(waiting.begin(), waiting.end());
      waiting.pop_back();
    }
  }
  return false;
}

void NetworkModel::StartSending(double now, int host) {
  Card& card = cards_[host];
  NetworkMessage message;
  card.sending = NextMessage(host, message);
  if (!card.sending) return;
  card.bytes_sent += message.bytes;
  const double seconds = message.bytes / rates_.bytes_per_second + rates_.message_seconds;
  events_.push({.time = now + seconds, .number = numbers_++, .card = host, .sent = true});
  Card& receiver = cards_[message.to];
  double& until = receiver.receiving_until;
  until = std::max(until, now + rates_.latency_seconds) + seconds;
  receiver.coming.push_back({.time = until, .number = numbers_++, .message = message});
  if (receiver.coming.size() == 1) ExpectDelivery(message.to);
}

void NetworkModel::ExpectDelivery(int host) {
  const Delivery& delivery = cards_[host].coming.front();
  events_.push({.time = delivery.time, .number = delivery.number, .card = host, .sent = false});
}

bool NetworkModel::Advance(NetworkMessage& message) {
  const Event event = events_.top();
  events_.pop();
  if (event.sent) {
    StartSending(event.time, event.card);
    return false;
  }
  std::deque<Delivery>& coming = cards_[event.card].coming;
  message = coming.front().message;
  coming.pop_front();
  if (!coming.empty()) ExpectDelivery(event.card);
  return true;
}

}  // namespace muster
