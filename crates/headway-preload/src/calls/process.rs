//! What is said at the end of a process that got no function of this library.

use headway_core::files::guest::FIRST_VARIABLE;
use headway_core::files::guest_log;

use crate::base::attention::{self, variable};
use crate::base::print::print;
use crate::calls::audit;
use crate::calls::table::TABLE;
use crate::observers::unhooked;

/// Called when a program with the library ends.
#[used]
// SAFETY: the loader calls what stands in this section, without arguments.
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Reports that no copy was seen, to whom an option promises something of each.
extern "C" fn end() {
    let Some(options) = attention::asked() else { return };
    if attention::has_begun() || audit::is_asked() {
        return;
    }
    let tells = options.stats || options.lint || options.verify || variable(guest_log::VARIABLE).is_some();
    let say = |what: &str| print(&format!("headway: process {} {what}\n", std::process::id()));
    // Nothing of the driver was replaced: was it reached by another lookup?
    if unhooked::driver_is_loaded() {
        if options.verify {
            unhooked::say(&TABLE.copies());
        }
        if tells {
            say(
                "loaded the CUDA driver and asked for no function that copies, or looked its functions up where Headway does not see it, so that no \
                 copies were seen",
            );
        }
    } else if tells && variable(FIRST_VARIABLE).and_then(|text| text.parse().ok()) == Some(std::process::id()) {
        // Only the process that was started as a guest says so.
        say("loaded no CUDA driver, so that no copies were seen; processes that it started say so themselves");
    }
}
