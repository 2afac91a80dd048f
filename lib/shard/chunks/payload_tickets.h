// Counts the payloads that are on their way into somebody's memory or out of it.
#pragma once

#include <glog/logging.h>

#include <cstdint>
#include <utility>

namespace muster {

// Belongs to the owner of the memory. Whoever sees a payload through takes a ticket and keeps it as
// long as the memory is in use: beside the place that a payload is received into, or inside the
// `done` of a send. When all tickets are back the memory may go. No ticket outlives the owner.
//
// A ticket is one word, allocates nothing and leads back to the owner: a `done` that consists of a
// ticket and one more word fits into an AnyInvocable. Thread-compatible.
template <typename Owner>
class PayloadTickets {
 public:
  // Move-only; false once it was given back or moved from.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept : tickets_(std::exchange(other.tickets_, nullptr)) {}
    Ticket& operator=(Ticket&& other) noexcept {
      Ticket taken(std::move(other));
      std::swap(tickets_, taken.tickets_);
      return *this;
    }
    ~Ticket() { GiveBack(); }

    explicit operator bool() const { return tickets_ != nullptr; }
    // Of one that is held.
    Owner& owner() const { return *tickets_->owner_; }
    void GiveBack() {
      if (tickets_ != nullptr) --std::exchange(tickets_, nullptr)->out_;
    }

   private:
    friend class PayloadTickets;
    explicit Ticket(PayloadTickets* tickets) : tickets_(tickets) { ++tickets_->out_; }

    PayloadTickets* tickets_ = nullptr;
  };

  explicit PayloadTickets(Owner* owner) : owner_(owner) {}
  PayloadTickets(const PayloadTickets&) = delete;
  PayloadTickets& operator=(const PayloadTickets&) = delete;
  ~PayloadTickets() { CHECK_EQ(out_, 0) << "a payload is still under way"; }

  Ticket Take() { return Ticket(this); }
  bool all_back() const { return out_ == 0; }

 private:
  Owner* const owner_;
  int64_t out_ = 0;
};

}  // namespace muster
