"""Rewriting tasks: (instruction, input, output)."""

_FORMAL = "Rewrite the sentence in a more formal style."
_SHORT = "Make the sentence shorter without losing its meaning."
_PASSIVE = "Rewrite the sentence in the passive voice."

REWRITES = [
    (
        _FORMAL,
        "Hey, can you send me the report by tomorrow?",
        "Could you please send me the report by tomorrow?",
    ),
    (
        _FORMAL,
        "Sorry, we messed up your order.",
        "We apologise for the error in processing your order.",
    ),
    (
        _FORMAL,
        "The boss wants to know why the numbers are so bad.",
        "The manager would like to understand the reasons for the poor results.",
    ),
    (
        _FORMAL,
        "Thanks a lot for getting back to me so fast!",
        "Thank you very much for your prompt reply.",
    ),
    (
        _FORMAL,
        "We can't make it to the meeting on Monday.",
        "Unfortunately, we are unable to attend the meeting on Monday.",
    ),
    (
        _FORMAL,
        "Let me know if you've got any questions.",
        "Please do not hesitate to contact me if you have any questions.",
    ),
    (
        _FORMAL,
        "Your café is awesome and the staff are super nice.",
        "Your café is excellent, and the staff are exceptionally friendly.",
    ),
    (
        _SHORT,
        "Due to the fact that it was raining, we made the decision to stay at home.",
        "Because it was raining, we decided to stay at home.",
    ),
    (
        _SHORT,
        "At this point in time we do not have any information about the delay.",
        "We currently have no information about the delay.",
    ),
    (
        _SHORT,
        "The meeting that was planned for Tuesday has been moved to a later date, namely Thursday.",
        "The meeting has been moved from Tuesday to Thursday.",
    ),
    (
        _SHORT,
        "She is a person who always arrives on time for each and every appointment.",
        "She is always on time for appointments.",
    ),
    (
        _SHORT,
        "In order to open the box, what you need to do is press the red button.",
        "To open the box, press the red button.",
    ),
    (
        _SHORT,
        "There are many people who think that the new timetable is difficult to read.",
        "Many people find the new timetable hard to read.",
    ),
    (
        _PASSIVE,
        "The committee approved the new budget yesterday.",
        "The new budget was approved by the committee yesterday.",
    ),
    (
        _PASSIVE,
        "A strong wind damaged the roof of the school.",
        "The roof of the school was damaged by a strong wind.",
    ),
    (
        _PASSIVE,
        "Two volunteers are painting the fence.",
        "The fence is being painted by two volunteers.",
    ),
    (
        _PASSIVE,
        "Zoë will open the exhibition on Friday.",
        "The exhibition will be opened by Zoë on Friday.",
    ),
    (
        _PASSIVE,
        "The chef has changed the menu.",
        "The menu has been changed by the chef.",
    ),
    (
        "Rewrite the sentence so that it sounds friendlier.",
        "You filled in the form wrong. Do it again.",
        "Thank you for sending the form. A few fields still need a correction; could you please "
        "take another look?",
    ),
]
