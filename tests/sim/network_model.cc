#include "tests/sim/network_model.h"

#include <algorithm>

namespace muster {

void NetworkModel::Send(double now, const NetworkMessage& message) {
  Card& card = cards_[message.from];
  card.waiting.push({message, numbers_++});
  if (!card.sending) StartSending(now, message.from);
}

void NetworkModel::StartSending(double now, int host) {
  Card& card = cards_[host];
  card.sending = !card.waiting.empty();
  if (!card.sending) return;
  const NetworkMessage message = card.waiting.top().message;
  card.waiting.pop();
  card.bytes_sent += message.bytes;
  const double seconds = message.bytes / rates_.bytes_per_second + rates_.message_seconds;
  events_.push({now + seconds, numbers_++, host, {}});
  double& until = cards_[message.to].receiving_until;
  until = std::max(until, now + rates_.latency_seconds) + seconds;
  events_.push({until, numbers_++, -1, message});
}

bool NetworkModel::Advance(NetworkMessage& message) {
  const Event event = events_.top();
  events_.pop();
  if (event.card >= 0) {
    StartSending(event.time, event.card);
    return false;
  }
  message = event.message;
  return true;
}

}  // namespace muster
