//! The commands of a Markdown page: what stands in its `sh` blocks, line by line.

/// A command as it stands on the page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Example {
    /// Its first line.
    pub line: usize,
    /// What is typed. Lines that `\` joins are one; what a line of comment says is left out.
    pub command: String,
}

/// All commands of a page, in order.
pub fn examples(page: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let (mut inside, mut joined) = (false, false);
    for (line, text) in (1..).zip(page.lines()) {
        match text {
            "```sh" => inside = true,
            "```" => inside = false,
            _ if !inside || text.is_empty() || text.starts_with('#') => {}
            _ => {
                match examples.last_mut().filter(|_| joined) {
                    Some(example) => example.command += &format!("\n{text}"),
                    None => examples.push(Example { line, command: text.into() }),
                }
                joined = text.ends_with('\\');
            }
        }
    }
    examples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found() {
        let page =
            "text\n```\nnot this\n```\n```sh\n# a comment\none a \\\n  b\n\ntwo   # says: 2\n```\nmore\n";
        let example = |line, command: &str| Example { line, command: command.into() };
        assert_eq!(examples(page), [example(7, "one a \\\n  b"), example(10, "two   # says: 2")]);
    }
}
