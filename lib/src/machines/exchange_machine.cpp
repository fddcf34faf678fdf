#include "machines/exchange_machine.hpp"

namespace rcverbs::machines {

exchange_machine::action exchange_machine::resume(event e) noexcept {
    switch (e) {
    case event::publish:
        if (outward_ != progress::opening) return action::illegal;
        outward_ = progress::published;
        return action::send_regions;
    case event::finish:
        if (outward_ == progress::done) return action::illegal;
        outward_ = progress::done;
        return action::send_done;
    case event::regions_received:
        if (inward_ != progress::opening) return action::protocol_error;
        inward_ = progress::published;
        return action::deliver_regions;
    case event::done_received:
        if (inward_ == progress::done) return action::protocol_error;
        inward_ = progress::done;
        return action::deliver_done;
    }
    return action::illegal;
}

}  // namespace rcverbs::machines
