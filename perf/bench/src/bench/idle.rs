//! What consumers cost that wait for work which does not come.

use super::{Bench, BenchError};
use crate::table::{Row, thousands};
use overtake_base::limits::WAIT_S_MAX;
use overtake_client::Receive;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Before counting starts: all receives have reached the server.
const SETTLE: Duration = Duration::from_millis(500);

/// CPU of the server, in parts of one core, while receives wait on an empty queue.
pub(super) async fn idle(bench: &Bench<'_>) -> Result<Row, BenchError> {
    let waiting = bench.options.waiting;
    let name = format!("CPU while {} receives wait", thousands(u64::from(waiting)));
    let Some(pid) = bench.options.server_pid else {
        return Ok(Row { name, note: "give --server-pid to measure".into(), ..Row::default() });
    };
    let missing = || std::io::Error::other(format!("no process {pid} to take the CPU time of"));
    let mut receives = JoinSet::new();
    for _ in 0..waiting {
        let (client, queue) = (bench.client.clone(), bench.queue.clone());
        receives.spawn(async move {
            // A wait that ends is asked for anew, as a consumer would.
            loop {
                let receive = Receive { wait_s: WAIT_S_MAX, ..Receive::new(queue.as_str()) };
                if let Err(error) = client.receive(receive).await {
                    return error;
                }
            }
        });
    }
    tokio::time::sleep(SETTLE.min(bench.options.duration)).await;
    let (start, before) = (Instant::now(), bench.server_cpu().ok_or_else(missing)?);
    tokio::select! {
        () = tokio::time::sleep(bench.options.duration) => {}
        Some(Ok(error)) = receives.join_next() => return Err(error.into()),
    }
    let used = bench.server_cpu().ok_or_else(missing)?.saturating_sub(before);
    let percent = used.as_secs_f64() * 100.0 / start.elapsed().as_secs_f64();
    Ok(Row { name, note: format!("server CPU {percent:.2} % of one core"), ..Row::default() })
}
